#include "tessera/hub/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/hub/convert/hf_folder.h"
#include "tessera/hub/convert/non_finite.h"
#include "tessera/hub/find_checkpoint.h"

namespace tessera::hub {

namespace fs = std::filesystem;

std::string checkpoint_in(const fs::path& folder) {
  std::error_code code;
  if (fs::is_regular_file(folder / checkpoint::kManifestFile, code)) return std::string(checkpoint::kManifestFile);
  for (const char* below : {"", "checkpoints"})
    if (const auto all = checkpoint::list_checkpoints(folder / below); !all.empty())
      return (fs::path(below) / all.back().path.filename()).string();
  return "";
}

bool is_hf_folder(const fs::path& source) {
  std::error_code code;
  if (!fs::is_regular_file(source / "config.json", code)) return false;
  const std::string found = checkpoint_in(source);
  if (!holds_hf_weights(source)) return found.empty() && !fs::is_directory(source / "checkpoints", code);
  if (!found.empty())
    throw InputError("{}: holds {} and a model in Hugging Face's form (config.json): expected one of them",
                     source.string(), found);
  return true;
}

ConvertReport convert(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  std::error_code code;
  if (target.empty()) throw InputError("target '': expected the name of a new folder");
  const auto status = fs::symlink_status(target, code);
  if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(target, code)))
    throw InputError("target '{}' exists: expected a new or empty folder", target.string());
  if (options.dtype && !quant::is_floating(*options.dtype))
    throw InputError("dtype: expected fp32, bf16 or fp64, got {}", name_of(*options.dtype));
  if (is_hf_folder(source)) return import_hf(source, target, options);
  return export_hf(find_checkpoint(source, CheckpointUse::convert), target, options);
}

std::string convert_text(const ConvertReport& report) {
  std::string text;
  for (const auto& [key, value] : report.items()) {
    if (key == "non_finite") continue;
    const nlohmann::json& shown = key == "format" && value == name_of(quant::Format::bf16) ? report.at("dtype") : value;
    text += fmt::format("{:10} {}\n", key, shown.is_string() ? shown.get<std::string>() : shown.dump());
  }
  return text;
}

std::vector<std::string> convert_warnings(const ConvertReport& report) {
  return non_finite_lines(report.value("non_finite", nlohmann::json::array()));
}

}  // namespace tessera::hub
