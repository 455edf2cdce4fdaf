// Environment variables of the program. rendezvous/launcher.h reads the variables of launchers.
#pragma once
#include <optional>
#include <string>

namespace tessera::base {

struct Environment {
  // TESSERA_CONFIGS: the folder of named models. The program reads this folder instead of `configs` in the source tree.
  std::optional<std::string> configs;
  // TESSERA_CHECK_COLLECTIVES=1: the backends `mpi` and `nccl` compare the operation, count and type of each collective
  // between ranks. The backend `local` always makes this comparison.
  bool check_collectives = false;
  // TESSERA_PYTHON: the Python interpreter that converts text to tokens (hub/tokenizer/python_tokenizer.h). If the
  // variable is set, the program tries no other interpreter.
  std::optional<std::string> python;
};
Environment read_environment();

}  // namespace tessera::base
