// Starts or joins ranks that are processes with one GPU each.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/settings/places.h"

namespace tessera::launch {

struct NcclRun {
  std::chrono::milliseconds timeout{60000};
  bool check_mismatch = false;
  std::function<bool()> stop_requested = {};  // passed to run_processes
  int ranks = 0;                              // number of ranks to start without a launcher; 0: one per visible GPU
  // Returns the rank of process `rank` of the `processes` that a launcher started, or a text if the process has no rank
  // (places.h). Empty: every process has a rank.
  std::function<settings::StartedRank(int rank, int processes)> started = {};
  // Returns the device of each rank, given the number of visible GPUs. Called only without a launcher; under a launcher
  // a process uses the device of its local rank. Empty: rank i uses device i.
  std::function<std::vector<int>(int visible)> devices = {};
  // Called with the error before the process of a failed rank ends. May be called on any thread. Returns whether the
  // error is printed.
  std::function<bool(const std::string& error)> before_exit = {};
};

// Under torchrun, mpirun or srun, this process is one of the ranks: it joins the other ranks and calls `body`. Without
// a launcher, this process starts the ranks on this node (processes.h) and returns their exit code. Only the started
// processes then call `body`. Throws InputError for: a build without CUDA; fewer GPUs than ranks; an InputError of
// `body`. Any other failure of a rank prints one line with the rank's number and ends the process with exit code 1.
int run_with_nccl(const NcclRun& run, const std::function<void(comm::World&)>& body);

}  // namespace tessera::launch
