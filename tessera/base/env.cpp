#include "tessera/base/env.h"

#include <cstdlib>

namespace tessera::base {

Environment read_environment() {
  Environment environment;
  if (const char* configs = std::getenv("TESSERA_CONFIGS")) environment.configs = configs;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || environment.launcher_rank) continue;
    char* end = nullptr;
    const long rank = std::strtol(value, &end, 10);
    if (end != value && *end == '\0') environment.launcher_rank = static_cast<int>(rank);
  }
  return environment;
}

}  // namespace tessera::base
