// Environment variables of the program. rendezvous/launcher.h reads the variables of launchers.
#pragma once
#include <optional>
#include <string>

namespace tessera::base {

struct Environment {
  // TESSERA_CONFIGS: the folder of named models. This folder replaces the one in the source tree.
  std::optional<std::string> configs;
  // TESSERA_CHECK_COLLECTIVES=1: the backends `mpi` and `nccl` compare the operation, count and type of each collective
  // between ranks. The backend `local` always compares them.
  bool check_collectives = false;
  // TESSERA_PYTHON: the Python interpreter that converts text to tokens (run/tokenizer/python_tokenizer.h). This
  // interpreter replaces the one in the source tree, and python3.
  std::optional<std::string> python;
};
Environment read_environment();

}  // namespace tessera::base
