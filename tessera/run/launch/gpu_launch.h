// Ranks as processes with a GPU each.
#pragma once
#include <chrono>
#include <functional>

#include "tessera/comm/world.h"

namespace tessera::run {

struct NcclRun {
  std::chrono::milliseconds timeout{60000};
  bool check_mismatch = false;
  std::function<bool()> stop_requested = {};  // run_processes' argument
  int ranks = 0;                              // to be started where no launcher has; 0: as many as GPUs are visible
};

// Under torchrun, mpirun or srun this process is one of the ranks: joins the others and calls `body`. Otherwise starts
// the ranks on this node (processes.h) and returns their exit code; `body` is then called in them alone. Errors
// (InputError): a build without CUDA, fewer GPUs than ranks, and what `body` throws so. What else fails in a rank is
// printed as one line with its number, and ends the process with exit code 1.
int run_with_nccl(const NcclRun& run, const std::function<void(comm::World&)>& body);

}  // namespace tessera::run
