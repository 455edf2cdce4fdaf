// Escapes text from files for messages.
#pragma once
#include <string>
#include <string_view>

namespace tessera::base {

// Returns the text with every control character, and every byte that is not part of valid UTF-8, replaced by \xNN. The
// result is one line that a terminal can show.
std::string printable(std::string_view text);

}  // namespace tessera::base
