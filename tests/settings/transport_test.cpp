#include "tessera/settings/transport.h"

#include <gtest/gtest.h>

#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

TEST(Transport, IsThatOfWeightsThatGpusShard) {
  TrainConfig config;
  config.mesh.gtp = 2;
  runtime::ScheduleStatistics statistics;
  statistics.planned = 1;
  for (const Backend backend : {Backend::local, Backend::mpi}) {
    config.backend = backend;
    EXPECT_EQ(transport_of(run_of(config), statistics), "");
  }
  config.backend = Backend::nccl;
  EXPECT_EQ(transport_of(run_of(config), statistics), "push");
  statistics.indirect = "GPUs 0 and 1 are not peers";
  EXPECT_EQ(transport_of(run_of(config), statistics), "nccl");
  statistics.planned = 0;
  EXPECT_EQ(transport_of(run_of(config), statistics), "");
  statistics.planned = 1;
  config.mesh.gtp = 1;
  EXPECT_EQ(transport_of(run_of(config), statistics), "");
}

}  // namespace
}  // namespace tessera::settings
