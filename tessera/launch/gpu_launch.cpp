#include "tessera/launch/gpu_launch.h"

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
#include "tessera/base/memory/out_of_memory.h"
#include "tessera/comm/nccl/world.h"
#include "tessera/launch/failure_line.h"
#include "tessera/rendezvous/connecting.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/processes.h"
#include "tessera/rendezvous/run_identity.h"
#include "tessera/rendezvous/tcp_store.h"

namespace tessera::launch {
namespace {

// Time that ranks have after the time limit to detect a failure and to end.
constexpr std::chrono::seconds kExitGrace{10};
// Time that the main thread of the rank has to report the failure with more details.
constexpr std::chrono::seconds kReportDelay{3};

// Ends the process of a failed rank. Operations on the device may never finish, so no resource is released.
class FailureExit {
 public:
  FailureExit(int rank, std::function<bool(const std::string&)> before_exit)
      : rank_(rank), before_exit_(std::move(before_exit)) {}
  // The first caller prints the line and ends the process.
  [[noreturn]] void report_and_exit(const std::string& error, int code = 1) {
    if (!reported_.test_and_set()) {
      const bool is_printed = !before_exit_ || before_exit_(error);
      if (is_printed) fmt::print(stderr, "{}\n", failure_line(rank_, error));
      std::fflush(nullptr);
      std::_Exit(code);
    }
    for (;;) std::this_thread::sleep_for(kReportDelay);
  }

 private:
  const int rank_;
  const std::function<bool(const std::string&)> before_exit_;
  std::atomic_flag reported_;
};

void join(const NcclRun& run, rendezvous::Launch place, const std::function<void(comm::World&)>& body) {
  comm::NcclOptions options;
  options.timeout = run.timeout;
  options.check_mismatch = run.check_mismatch;
  options.rank = place.rank;
  options.size = place.size;
  const int visible = base::cuda_device_count();
  options.device = base::cuda_device(place.is_self_started && run.devices
                                         ? run.devices(visible).at(static_cast<std::size_t>(place.rank))
                                         : rendezvous::device_of(place, visible));
  base::set_device(options.device);
  rendezvous::disable_store_log();
  const rendezvous::StoreLimits limits{.connect = std::max(run.timeout, rendezvous::kConnecting),
                                       .answer = run.timeout};
  rendezvous::StorePort port(place);
  options.store = rendezvous::join_run(rendezvous::make_tcp_store(place, limits), place, limits.connect);
  const auto failure_exit = std::make_shared<FailureExit>(place.rank, run.before_exit);
  options.on_failure = [failure_exit](const std::string& error) {
    std::this_thread::sleep_for(kReportDelay);
    failure_exit->report_and_exit(error);
  };
  try {
    const auto world = comm::make_nccl_world(options);
    port.close_when_all_connected(options.store);
    body(*world);
  } catch (const InputError&) {
    throw;
  } catch (const base::OutOfMemory& error) {
    failure_exit->report_and_exit(error.what(), 2);
  } catch (const std::exception& error) {
    failure_exit->report_and_exit(error.what());
  }
}

void check_nccl() {
  if (!comm::nccl_available())
    throw InputError(
        "ranks on GPUs (--backend nccl): this build has no CUDA, expected --backend local or mpi, or a build by ./run "
        "build cuda");
}

}  // namespace

int run_with_nccl(const NcclRun& run, const std::function<void(comm::World&)>& body) {
  rendezvous::Launch place = rendezvous::read_launch(rendezvous::own_variables());
  if (!place.launcher.empty()) {
    if (run.started && !place.is_self_started) {
      const settings::StartedRank started = run.started(place.rank, place.size);
      if (!started.takes_part()) {
        fmt::print("{}\n", started.text);
        return 0;
      }
      place.rank = started.rank, place.size = started.size;  // the lowest active rank hosts the store
    }
    check_nccl();
    join(run, place, body);
    return 0;
  }
  check_nccl();
  const int devices = base::cuda_device_count(), ranks = run.ranks > 0 ? run.ranks : devices;
  if (ranks > devices || ranks == 0)
    throw InputError("--ranks: {} with --backend nccl, expected 1 to {}: the number of visible GPUs", ranks, devices);
  if (run.devices) run.devices(devices);  // reports an error once, not once for each rank
  return rendezvous::run_processes(ranks, run.timeout + kExitGrace, run.stop_requested);
}

}  // namespace tessera::launch
