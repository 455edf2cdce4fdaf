#include "tessera/telemetry/graph_hint.h"

#include <gmock/gmock.h>

#include "tessera/settings/resolve/graph_checks.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

using ::testing::HasSubstr;

TEST(GraphHintLine, NamesTheFlagIfTheGpuWaitsForMoreThanHalfOfTheTime) {
  const telemetry::HostShare share{.waiting_seconds = 0.04, .step_seconds = 0.062, .accepts_graph = true};
  EXPECT_EQ(telemetry::graph_hint(share),
            "the GPU waits for its host in 65 % of a step: --cuda-graph on enqueues a step as one launch");
  telemetry::HostShare other = share;
  other.waiting_seconds = 0.031;
  EXPECT_EQ(telemetry::graph_hint(other), "");
  other = share;
  other.accepts_graph = false;
  EXPECT_EQ(telemetry::graph_hint(other), "");
  other = share;
  other.has_graph = true;
  EXPECT_EQ(telemetry::graph_hint(other), "");
  EXPECT_EQ(telemetry::graph_hint({.accepts_graph = true}), "");  // no step was measured
}

TrainConfig on_gpus() {
  TrainConfig config;
  config.backend = Backend::nccl;
  return config;
}

// Returns the number of the step after which the line is printed, or -1. The GPU waits in the steps from `first` on.
std::int64_t printed_after(const TrainConfig& config, std::int64_t first = 0) {
  telemetry::GraphHint hint(accepts_graph(config), config.cuda_graph);
  std::int64_t after = -1;
  for (std::int64_t step = 0; step < 100; ++step)
    if (!hint.add(step, step < first ? 0 : 1, 1).empty()) {
      EXPECT_EQ(after, -1) << "printed twice";
      after = step;
    }
  return after;
}

TEST(GraphHintOfARun, IsPrintedOnceAfterTwentySteps) {
  EXPECT_EQ(printed_after(on_gpus()), 19);
  EXPECT_EQ(printed_after(on_gpus(), 14), 19);
  EXPECT_EQ(printed_after(on_gpus(), 16), -1);  // in most of the measured steps, the GPU does not wait
}

TEST(GraphHintOfARun, IsNotPrintedIfTheFlagIsRefusedOrOn) {
  TrainConfig config = on_gpus();
  config.cuda_graph = true;
  EXPECT_EQ(printed_after(config), -1);
  config = on_gpus();
  config.mask_documents = true;
  EXPECT_EQ(printed_after(config), -1);
  config = on_gpus();
  config.debug_delays = 3;
  EXPECT_EQ(printed_after(config), -1);
  config = on_gpus();
  config.mesh.unused.idle[{.dp = 1}] = {0};
  EXPECT_EQ(printed_after(config), -1);
  EXPECT_EQ(printed_after(TrainConfig{}), -1);
}

}  // namespace
}  // namespace tessera::settings
