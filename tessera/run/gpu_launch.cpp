#include "tessera/run/gpu_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/comm/nccl/world.h"
#include "tessera/meet/connecting.h"
#include "tessera/meet/launcher.h"
#include "tessera/meet/processes.h"
#include "tessera/meet/tcp_store.h"
#include "tessera/run/failure_line.h"

namespace tessera::run {
namespace {

// Time after the time limit in which ranks can detect a failure and end.
constexpr std::chrono::seconds kFarewell{10};
// Time in which the rank's own thread can report the failure with more context.
constexpr std::chrono::seconds kLastWords{3};

// Ends the process of a failed rank. Operations on the device may never finish, so no resource is released.
class LastWords {
 public:
  explicit LastWords(int rank) : rank_(rank) {}
  // The first caller prints the line and ends the process.
  [[noreturn]] void say(const std::string& error) {
    if (!said_.test_and_set()) {
      fmt::print(stderr, "{}\n", failure_line(rank_, error));
      std::fflush(nullptr);
      std::_Exit(1);
    }
    for (;;) std::this_thread::sleep_for(kLastWords);
  }

 private:
  const int rank_;
  std::atomic_flag said_;
};

void join(const NcclRun& run, const meet::Launch& place, const std::function<void(comm::World&)>& body) {
  comm::NcclOptions options;
  options.timeout = run.timeout;
  options.check_mismatch = run.check_mismatch;
  options.rank = place.rank;
  options.size = place.size;
  options.device = base::cuda_device(meet::device_of(place, base::cuda_device_count()));
  base::set_device(options.device);
  meet::quieten_store();
  const meet::StoreLimits limits{.connect = std::max(run.timeout, meet::kConnecting), .answer = run.timeout};
  // After a restart by torchrun, the store still holds the entries of the previous attempt, so each attempt has its
  // own prefix.
  options.store = meet::make_prefix_store(meet::make_tcp_store(place, limits),
                                          fmt::format("attempt {} of {} ranks/", place.attempt, place.size));
  const auto last_words = std::make_shared<LastWords>(place.rank);
  options.on_failure = [last_words](const std::string& error) {
    std::this_thread::sleep_for(kLastWords);
    last_words->say(error);
  };
  try {
    body(*comm::make_nccl_world(options));
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& error) {
    last_words->say(error.what());
  }
}

}  // namespace

int run_with_nccl(const NcclRun& run, const std::function<void(comm::World&)>& body) {
  if (!comm::nccl_available())
    throw InputError(
        "ranks on GPUs (--backend nccl): this build has no CUDA, expected --backend local or mpi, or a build by ./run "
        "build cuda");
  const meet::Launch place = meet::read_launch(meet::own_variables());
  if (!place.launcher.empty()) {
    join(run, place, body);
    return 0;
  }
  const int devices = base::cuda_device_count(), ranks = run.ranks > 0 ? run.ranks : devices;
  if (ranks > devices || ranks == 0)
    throw InputError("--ranks: {} with --backend nccl, expected 1 to {}: the number of visible GPUs", ranks, devices);
  return meet::run_processes(ranks, run.timeout + kFarewell, run.stop_requested);
}

}  // namespace tessera::run
