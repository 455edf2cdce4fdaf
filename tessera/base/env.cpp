#include "tessera/base/env.h"

#include <array>
#include <cstdlib>

namespace tessera::base {
namespace {

std::optional<int> integer_of(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  char* end = nullptr;
  const long number = std::strtol(value, &end, 10);
  if (end == value || *end != '\0') return std::nullopt;
  return static_cast<int>(number);
}

struct Launcher {
  const char *rank, *size;
};
constexpr std::array kLaunchers{Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                Launcher{"PMI_RANK", "PMI_SIZE"}, Launcher{"SLURM_PROCID", "SLURM_NTASKS"},
                                Launcher{"RANK", "WORLD_SIZE"}};

}  // namespace

Environment read_environment() {
  Environment environment;
  if (const char* configs = std::getenv("TESSERA_CONFIGS")) environment.configs = configs;
  environment.check_collectives = integer_of("TESSERA_CHECK_COLLECTIVES").value_or(0) != 0;
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = integer_of(launcher.rank), size = integer_of(launcher.size);
    if (!rank || !size) continue;
    environment.launcher_rank = rank;
    environment.launcher_size = size;
    break;
  }
  return environment;
}

}  // namespace tessera::base
