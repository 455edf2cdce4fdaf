#include "tessera/settings/text/step_times.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"

namespace tessera::settings {
namespace {

// Returns the integer if the whole text is an integer of at least 1.
template <typename T>
std::optional<T> positive_integer(std::string_view text) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 1) return std::nullopt;
  return number;
}

}  // namespace

std::map<std::int64_t, int> parse_step_times(const std::string& text, const std::string& flag) {
  std::map<std::int64_t, int> times;
  std::string_view left = text;
  while (!left.empty() || !times.empty()) {
    const std::string_view entry = left.substr(0, left.find(','));
    const std::size_t colon = entry.find(':');
    const auto step = positive_integer<std::int64_t>(entry.substr(0, colon));
    const auto count = colon == entry.npos ? std::optional(1) : positive_integer<int>(entry.substr(colon + 1));
    if (!step || !count || !times.emplace(*step, *count).second)
      throw InputError("{}: got '{}', expected different steps from 1 such as 5 or 5:2 (twice), separated by commas",
                       flag, base::excerpt(text));
    if (entry.size() == left.size()) break;
    left.remove_prefix(entry.size() + 1);
  }
  return times;
}

}  // namespace tessera::settings
