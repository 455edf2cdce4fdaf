// The tests of comm. Under mpirun, with TESSERA_TEST_BACKEND=mpi, tests that use on_ranks() run on the processes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tessera/comm/mpi/world.h"
#include "tests/comm/failure_printer.h"
#include "tests/comm/ranks.h"

namespace {

int run_on_mpi() {
  auto& world = tessera::comm::world_of_tests();
  world = tessera::comm::make_mpi_world({.timeout = std::chrono::seconds(60), .check_mismatch = true});
  tessera::comm::print_failures_only_unless_first(world->rank());
  const int code = RUN_ALL_TESTS();
  if (code != 0) tessera::comm::abort_mpi(code);  // the ranks may be in different operations
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
