// Ranks as processes with one GPU each.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/run/config/places.h"

namespace tessera::run {

struct NcclRun {
  std::chrono::milliseconds timeout{60000};
  bool check_mismatch = false;
  std::function<bool()> stop_requested = {};  // argument of run_processes
  int ranks = 0;                              // number to start without a launcher; 0: one per visible GPU
  // Returns what process `rank` of `processes` of a launcher does (places.h). Empty: all take part.
  std::function<StartedRank(int rank, int processes)> started = {};
  // Without a launcher: returns the device of each rank, given the number of visible GPUs. Empty: in order. Not called
  // under a launcher, whose local ranks are the devices.
  std::function<std::vector<int>(int visible)> devices = {};
  // Called on any thread before the process of a failed rank ends, with the error.
  std::function<void(const std::string& error)> before_exit = {};
};

// Under torchrun, mpirun or srun, this process is one of the ranks: it joins the other ranks and calls `body`. Without
// a launcher, this process starts the ranks on this node (processes.h) and returns their exit code; only the started
// processes call `body`. Throws InputError for a build without CUDA and for fewer GPUs than ranks, and passes on an
// InputError of `body`. Any other failure of a rank is printed as one line with the rank's number, and ends the process
// with exit code 1.
int run_with_nccl(const NcclRun& run, const std::function<void(comm::World&)>& body);

}  // namespace tessera::run
