// Every environment variable that the program reads, read in one place.
#pragma once
#include <optional>
#include <string>

namespace tessera::base {

struct Environment {
  // TESSERA_CONFIGS: folder of named models, instead of the one of the source tree.
  std::optional<std::string> configs;
  // TESSERA_CHECK_COLLECTIVES=1: `mpi` and `nccl` compare each operation, count and type with the
  // peers' (`local` always does).
  bool check_collectives = false;
  // This process's rank and the number of ranks, if a launcher started it: OMPI_COMM_WORLD_RANK and _SIZE (mpirun),
  // PMI_RANK and _SIZE, SLURM_PROCID and SLURM_NTASKS (srun), RANK and WORLD_SIZE (torchrun). Before the backend is up
  // they tell which process speaks for all.
  std::optional<int> launcher_rank, launcher_size;
};
Environment read_environment();

}  // namespace tessera::base
