// The launch, the store and the device that the tests of test_comm_nccl share.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tessera/comm/nccl/world.h"
#include "tessera/rendezvous/tcp_store.h"

namespace tessera::comm {

struct NcclRun {
  rendezvous::Launch launch;
  std::shared_ptr<rendezvous::Store> store;
  base::Device device;
};

// main() sets this state.
inline NcclRun& nccl_run_of_tests() {
  static NcclRun run;
  return run;
}

// Returns the options of a world of all ranks. `name` must be unique among the worlds.
inline NcclOptions nccl_options(const std::string& name, const WorldOptions& world) {
  const NcclRun& run = nccl_run_of_tests();
  NcclOptions options;
  static_cast<WorldOptions&>(options) = world;
  options.rank = run.launch.rank;
  options.size = run.launch.size;
  options.device = run.device;
  options.store = make_prefix_store(run.store, name + "/");
  return options;
}

// The base of tests with several ranks. If a test may make its world unusable, it makes its own world.
class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    if (ranks() < 2) GTEST_SKIP() << "fewer than 2 devices";
  }
  static int rank() { return nccl_run_of_tests().launch.rank; }
  static int ranks() { return nccl_run_of_tests().launch.size; }
  static base::Device device() { return nccl_run_of_tests().device; }
  // Makes a world for this test. If a test makes several worlds, each world needs a different `name`.
  static std::unique_ptr<World> make_world(const WorldOptions& options, const std::string& name = {}) {
    return make_nccl_world(nccl_options(testing::UnitTest::GetInstance()->current_test_info()->name() + name, options));
  }
};

}  // namespace tessera::comm
