// Escapes text from users and files for messages, and finds bytes that are not valid UTF-8.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::base {

// Returns the text with every control character, and every byte that is not part of valid UTF-8, replaced by \xNN. The
// result is one line that a terminal can show.
std::string printable(std::string_view text);

// Returns printable(text) if it has at most `limit` bytes. Otherwise returns its beginning, followed by "...", with at
// most `limit` bytes. Takes a bounded time for texts of any size.
std::string excerpt(std::string_view text, std::size_t limit = 100);

// Returns the index of the first byte that is not part of valid UTF-8 (RFC 3629); nullopt if the text is valid.
std::optional<std::size_t> invalid_utf8(std::string_view text);

}  // namespace tessera::base
