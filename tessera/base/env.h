// Environment variables of the program, read in one place; those of launchers: rendezvous/launcher.h.
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
};
Environment read_environment();

}  // namespace tessera::base
