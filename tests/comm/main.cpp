// The tests of comm. Under mpirun, with TESSERA_TEST_BACKEND=mpi, tests that go through on_ranks() use the processes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tessera/comm/mpi.h"
#include "tests/comm/ranks.h"

namespace {

// Only failures: eight processes would print everything eight times.
class FailurePrinter final : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) std::cerr << "rank " << rank_ << ": " << result.summary() << "\n";
  }

 private:
  int rank_;
};

int run_on_mpi() {
  auto& world = tessera::comm::world_of_tests();
  world = tessera::comm::make_mpi_world({.timeout = std::chrono::seconds(60), .check_mismatch = true});
  if (world->rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(world->rank()));
  }
  const int code = RUN_ALL_TESTS();
  if (code != 0) tessera::comm::abort_mpi(code);  // the ranks may be out of step
  world.reset();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* backend = std::getenv("TESSERA_TEST_BACKEND");
  if (backend != nullptr && std::string_view(backend) == "mpi") return run_on_mpi();
  return RUN_ALL_TESTS();
}
