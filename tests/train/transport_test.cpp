#include "tessera/train/transport.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

TEST(Transport, IsThatOfWeightsWhichGpusShareOut) {
  TrainConfig config;
  config.gtp = 2;
  shard::ScheduleStatistics statistics;
  EXPECT_EQ(transport_of(config, statistics), "");
  config.backend = Backend::nccl;
  EXPECT_EQ(transport_of(config, statistics), "push");
  statistics.indirect = "GPUs 0 and 1 are not peers";
  EXPECT_EQ(transport_of(config, statistics), "nccl");
  config.gtp = 1;
  EXPECT_EQ(transport_of(config, statistics), "");
}

}  // namespace
}  // namespace tessera::train
