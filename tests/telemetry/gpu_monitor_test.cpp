// Tests readings of GPUs from a library that imitates NVML (tests/preload/imitated_nvml.cpp), and the sums over all
// ranks.
#include "tessera/telemetry/gpu/gpu_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "tessera/telemetry/metrics.h"
#include "tessera/telemetry/rank_sums.h"

namespace tessera::telemetry {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;

TEST(GpuMonitor, ReadsClockPowerAndErrors) {
  const GpuMonitor monitor("00000000:17:00.0", IMITATED_NVML);
  const std::optional<GpuReading> reading = monitor.read();
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->clock_mhz, 1755);
  EXPECT_EQ(reading->power_w, 612.5);
  EXPECT_EQ(reading->errors, 3);
}

TEST(GpuMonitor, HasNoReadingWithoutTheLibraryOrTheGpu) {
  EXPECT_FALSE(GpuMonitor("00000000:17:00.0", "libno-such-nvml.so").read());
  EXPECT_FALSE(GpuMonitor("00000000:99:00.0", IMITATED_NVML).read());
  EXPECT_FALSE(GpuMonitor("", IMITATED_NVML).read());
  EXPECT_EQ(pci_bus_id(base::Device{}), "");
}

TEST(GpuMonitor, CountsNoErrorsWithoutCounters) {
  ::setenv("IMITATED_NVML_WITHOUT", "errors", 1);
  const auto reading = GpuMonitor("00000000:17:00.0", IMITATED_NVML).read();
  ::setenv("IMITATED_NVML_WITHOUT", "power", 1);
  const auto without_power = GpuMonitor("00000000:17:00.0", IMITATED_NVML).read();
  ::unsetenv("IMITATED_NVML_WITHOUT");
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->errors, 0);
  EXPECT_FALSE(without_power);
}

// Returns the sum of the lists of the ranks.
std::vector<double> all_ranks(const std::vector<double>& waits, const std::vector<std::optional<GpuReading>>& gpus) {
  std::vector<double> all(waits.size() * kRankValues);
  for (std::size_t rank = 0; rank < waits.size(); ++rank)
    write_rank_values(std::span(all).subspan(rank * kRankValues, kRankValues), waits[rank], gpus[rank]);
  return all;
}

TEST(RankValues, TheSlowestRankWaitedLeast) {
  StepMetrics metrics;
  add_rank_values(all_ranks({4, 1, 3}, {{}, {}, {}}), metrics);
  EXPECT_EQ(metrics.slowest_rank, 1);
  EXPECT_EQ(metrics.slowest_rank_wait_ms, 1);
  EXPECT_FALSE(metrics.gpu_clock_mhz);
}

TEST(RankValues, OneRankAndUnmeasuredWaitsHaveNoSlowestRank) {
  StepMetrics metrics;
  add_rank_values(all_ranks({4}, {{}}), metrics);
  EXPECT_FALSE(metrics.slowest_rank);
  add_rank_values(all_ranks({4, std::numeric_limits<double>::quiet_NaN()}, {{}, {}}), metrics);
  EXPECT_FALSE(metrics.slowest_rank);
}

TEST(RankValues, GpusHaveTheLowestClockAndTheSumOfPowerAndErrors) {
  StepMetrics metrics{.step = 1};
  add_rank_values(all_ranks({1, 1}, {GpuReading{1755, 600, 1}, GpuReading{1200, 500.5, 2}}), metrics);
  EXPECT_EQ(metrics.gpu_clock_mhz, 1200);
  EXPECT_EQ(metrics.gpu_power_w, 1100.5);
  EXPECT_EQ(metrics.gpu_errors, 3);
  const std::string line = metrics_line(metrics);
  EXPECT_THAT(line, HasSubstr(R"("slowest_rank": 0, "slowest_rank_wait_ms": 1.0, "gpu_clock_mhz": 1200.0, )"
                              R"("gpu_power_w": 1100.5, "gpu_errors": 3)"));
  EXPECT_EQ(metrics_line(parse_metrics_line(line, "m")), line);

  StepMetrics partial{.step = 1};
  add_rank_values(all_ranks({1, 1}, {GpuReading{1755, 600, 1}, {}}), partial);
  EXPECT_FALSE(partial.gpu_clock_mhz);
  EXPECT_THAT(metrics_line(partial), Not(HasSubstr("gpu_")));
}

}  // namespace
}  // namespace tessera::telemetry
