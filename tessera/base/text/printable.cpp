#include "tessera/base/text/printable.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

namespace tessera::base {
namespace {

// The first character of a text.
struct Character {
  std::size_t bytes = 0;  // length; 0: the bytes are not valid UTF-8 (RFC 3629)
  std::uint32_t code = 0;
};
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {1, first};
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
  std::uint32_t code = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool too_long = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (too_long || surrogate || code > 0x10FFFF) return {};
  return {length, code};
}

bool is_control(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0);
}

// Removes the first character, or the first byte if it does not begin a character that can be shown. Returns its
// printable text.
std::string take_printable(std::string_view& text) {
  const Character character = first_character(text);
  const bool is_shown = character.bytes > 0 && !is_control(character.code);
  const std::string_view taken = text.substr(0, is_shown ? character.bytes : 1);
  text.remove_prefix(taken.size());
  return is_shown ? std::string(taken) : fmt::format("\\x{:02x}", static_cast<unsigned char>(taken[0]));
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) result += take_printable(text);
  return result;
}

std::string excerpt(std::string_view text, std::size_t limit) {
  constexpr std::string_view kEnd = "...";
  std::string result;
  std::size_t before_end = 0;  // the length of the longest beginning that leaves room for kEnd
  while (!text.empty() && result.size() <= limit) {
    if (result.size() + kEnd.size() <= limit) before_end = result.size();
    result += take_printable(text);
  }
  if (result.size() <= limit) return result;
  return result.substr(0, before_end).append(kEnd);
}

std::optional<std::size_t> invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Character character = first_character(text.substr(at));
    if (character.bytes == 0) return at;
    at += character.bytes;
  }
  return std::nullopt;
}

}  // namespace tessera::base
