// Every environment variable that the program reads, read in one place.
#pragma once
#include <optional>
#include <string>

namespace tessera::base {

struct Environment {
  // TESSERA_CONFIGS: folder of named models, instead of the one of the source tree.
  std::optional<std::string> configs;
  // This process's rank if a launcher started it: OMPI_COMM_WORLD_RANK (mpirun), PMI_RANK, SLURM_PROCID, RANK
  // (torchrun). Before the backend is up it tells which process speaks for all.
  std::optional<int> launcher_rank;
};
Environment read_environment();

}  // namespace tessera::base
