#include "tessera/train/convert.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/train/checkpoint_folder.h"

namespace tessera::train {

namespace fs = std::filesystem;

ConvertReport convert(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  std::error_code code;
  const auto status = fs::symlink_status(target, code);
  if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(target, code)))
    throw InputError("{}: exists: expected a new or empty folder", target.string());
  if (options.dtype && !base::is_floating(*options.dtype))
    throw InputError("dtype: expected fp32, bf16 or fp64, got {}", base::name_of(*options.dtype));
  if (fs::is_regular_file(source / "config.json", code) && !fs::is_directory(source / "checkpoints", code))
    return import_hf(source, target, options);
  return export_hf(resolve_checkpoint(source), target, options);
}

std::int64_t parse_byte_size(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 8> kUnits{{{"", 1},
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
  const auto known = std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& entry) { return entry.first == unit; });
  if (error != std::errc{} || count <= 0 || known == kUnits.end() ||
      __builtin_mul_overflow(count, known->second, &bytes))
    throw InputError("'{}': expected a size as 5GB, 300MB, 2GiB or a number of bytes", text);
  return bytes;
}

}  // namespace tessera::train
