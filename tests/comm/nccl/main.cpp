// The test bodies of comm, with one process for each GPU. Without a launcher, the program starts the ranks itself: one
// for each device, or TESSERA_TEST_RANKS. Under torchrun, mpirun or srun it is one of the ranks.
// TESSERA_TEST_MEMORY=host keeps the operands of collectives in host memory. Exit code 77 means that there is no
// device.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/rendezvous/processes.h"
#include "tessera/rendezvous/stop_requests.h"
#include "tests/comm/failure_printer.h"
#include "tests/comm/nccl/run.h"
#include "tests/comm/ranks.h"

namespace {

using namespace tessera;

constexpr int kSkipped = 77;

// Counts devices in a separate process, because a process that has used CUDA must not fork.
int count_devices() {
  const pid_t child = fork();
  if (child == 0) _exit(std::min(base::cuda_device_count(), 64));
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

// Exits without libtorch's exit-time destructors, which may free memory twice.
[[noreturn]] void leave(int code) {
  std::cout.flush();
  std::_Exit(code);
}

// Starts the ranks and waits for them.
int run_ranks() {
  const int devices = count_devices();
  const char* wanted = std::getenv("TESSERA_TEST_RANKS");
  const int ranks = wanted == nullptr ? devices : std::atoi(wanted);
  if (devices == 0 || ranks < 1 || ranks > devices) {
    std::cout << "SKIPPED: " << devices << " CUDA devices, " << ranks << " ranks requested\n";
    return kSkipped;
  }
  const int result = rendezvous::run_processes(ranks, std::chrono::seconds(20));
  std::cout << ranks << " ranks: " << (result == 0 ? "all passed" : "FAILED") << "\n";
  return result;
}

int run_tests(const rendezvous::Launch& launch) {
  rendezvous::accept_stop_signals();
  auto& run = comm::nccl_run_of_tests();
  run.launch = launch;
  run.store =
      rendezvous::make_tcp_store(launch, {.connect = std::chrono::seconds(60), .answer = std::chrono::seconds(60)});
  run.device = base::cuda_device(rendezvous::device_of(launch, base::cuda_device_count()));
  auto& world = comm::world_of_tests();
  world = comm::make_nccl_world(comm::nccl_options("world", {}));
  const char* memory = std::getenv("TESSERA_TEST_MEMORY");
  if (memory == nullptr || std::string_view(memory) != "host") comm::device_of_tests() = run.device;
  comm::print_failures_only_unless_first(launch.rank);
  const int code = RUN_ALL_TESTS();
  if (code == 0) world.reset();  // after a failure the ranks may not be at the same operation
  leave(code);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const rendezvous::Launch launch = rendezvous::read_launch(rendezvous::own_variables());
    if (launch.launcher.empty()) leave(run_ranks());
    testing::InitGoogleTest(&argc, argv);
    return run_tests(launch);
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
