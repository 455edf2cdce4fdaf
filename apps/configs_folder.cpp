#include "configs_folder.h"

namespace tessera::apps {

std::filesystem::path configs_folder(const base::Environment& environment) {
  if (environment.configs) return *environment.configs;
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  const std::filesystem::path installed = program.parent_path().parent_path() / "share/tessera/configs";
  return std::filesystem::is_directory(installed, none) ? installed : std::filesystem::path(TESSERA_CONFIGS);
}

}  // namespace tessera::apps
