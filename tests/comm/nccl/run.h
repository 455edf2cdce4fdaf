// What the ranks of test_comm_nccl share.
#pragma once
#include <memory>
#include <string>

#include "tessera/comm/nccl.h"
#include "tessera/comm/tcp_store.h"

namespace tessera::comm {

struct NcclRun {
  Launch launch;
  std::shared_ptr<Store> store;
  base::Device device;
};

// Set by main.
inline NcclRun& nccl_run_of_tests() {
  static NcclRun run;
  return run;
}

// For a world named `name` of all ranks; no two have the same name.
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

}  // namespace tessera::comm
