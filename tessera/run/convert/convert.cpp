#include "tessera/run/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder.h"

namespace tessera::run {

namespace fs = std::filesystem;

ConvertReport convert(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  std::error_code code;
  const auto status = fs::symlink_status(target, code);
  if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(target, code)))
    throw InputError("{}: exists: expected a new or empty folder", target.string());
  if (options.dtype && !quant::is_floating(*options.dtype))
    throw InputError("dtype: expected fp32, bf16 or fp64, got {}", name_of(*options.dtype));
  if (fs::is_regular_file(source / "config.json", code) && !fs::is_directory(source / "checkpoints", code))
    return import_hf(source, target, options);
  return export_hf(checkpoint::resolve_checkpoint(source), target, options);
}

std::string convert_text(const ConvertReport& report) {
  std::string text;
  for (const auto& [key, value] : report.items()) {
    const nlohmann::json& shown = key == "format" && value == name_of(quant::Format::bf16) ? report.at("dtype") : value;
    text += fmt::format("{:10} {}\n", key, shown.is_string() ? shown.get<std::string>() : shown.dump());
  }
  return text;
}

}  // namespace tessera::run
