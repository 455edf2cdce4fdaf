// Text from files in messages.
#pragma once
#include <string>
#include <string_view>

namespace tessera::base {

// The text with every control character, and every byte that is not part of UTF-8, as \xNN: one line that a terminal
// shows as it is.
std::string printable(std::string_view text);

}  // namespace tessera::base
