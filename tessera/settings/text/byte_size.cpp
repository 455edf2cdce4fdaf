#include "tessera/settings/text/byte_size.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/schedule/plan/plan.h"

namespace tessera::settings {

std::int64_t parse_byte_size(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 8> units{{{"", 1},
                                                                            {"B", 1},
                                                                            {"KB", 1000},
                                                                            {"MB", 1000'000},
                                                                            {"GB", 1000'000'000},
                                                                            {"KiB", 1 << 10},
                                                                            {"MiB", 1 << 20},
                                                                            {"GiB", 1 << 30}}};
  std::int64_t count = 0, bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const auto known = std::find_if(units.begin(), units.end(), [&](const auto& entry) { return entry.first == unit; });
  if (error != std::errc{} || count <= 0 || known == units.end() ||
      __builtin_mul_overflow(count, known->second, &bytes))
    throw InputError(
        "'{}': expected a size of at least 1 byte and less than 8 EiB, such as 5GB, 300MB, 2GiB or a number of bytes",
        base::excerpt(text));
  return bytes;
}

std::int64_t parse_byte_size(const std::string& text, const std::string& flag) {
  try {
    return parse_byte_size(text);
  } catch (const InputError& error) {
    throw InputError("{}: {}", flag, error.what());
  }
}

Budget parse_budget(const std::string& text, const std::string& flag) {
  if (text == "auto") return std::nullopt;
  if (text == "min") return schedule::kMinimum;
  try {
    return parse_byte_size(text);
  } catch (const InputError&) {
    throw InputError(
        "{}: got '{}', expected min, auto, or bytes such as 5GB, 300MB, 2GiB, at least 1 byte and less than 8 EiB",
        flag, base::excerpt(text));
  }
}

}  // namespace tessera::settings
