// The peak of a processor's arithmetic, and mfu in metrics.
#include "tessera/run/metrics/peak_flops.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tessera/run/metrics/metrics.h"
#include "tessera/run/metrics/tensorboard.h"

namespace tessera::run {
namespace {

TEST(PeakFlops, KnownGpusAreFoundByName) {
  EXPECT_EQ(bf16_peak_of("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(bf16_peak_of("NVIDIA H200"), 989e12);
  EXPECT_EQ(bf16_peak_of("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(bf16_peak_of("NVIDIA H20"), 148e12);
  EXPECT_EQ(bf16_peak_of("NVIDIA GH200 480GB"), 989e12);
  EXPECT_EQ(bf16_peak_of(""), std::nullopt);
  EXPECT_EQ(bf16_peak_of("NVIDIA A100-SXM4-80GB"), std::nullopt);
}

TEST(PeakFlops, TheSettingReplacesTheDevice) {
  TrainConfig config;
  config.dtype = quant::DType::bf16;
  EXPECT_EQ(peak_flops_of(config, {}), std::nullopt);
  config.peak_flops = 2e11;
  EXPECT_EQ(peak_flops_of(config, {}), 2e11);
}

TEST(Mfu, IsInTheLineAndInTensorBoardIfKnown) {
  StepMetrics metrics{.step = 3};
  const auto has_scalar = [&] {
    const Scalars scalars = scalars_of(metrics);
    return std::ranges::any_of(scalars, [](const auto& scalar) { return scalar.first == "mfu"; });
  };
  EXPECT_THAT(metrics_line(metrics), ::testing::HasSubstr("\"mfu\": null"));
  EXPECT_EQ(parse_metrics_line(metrics_line(metrics), "m").mfu, std::nullopt);
  EXPECT_FALSE(has_scalar());
  metrics.mfu = 0.4375;
  EXPECT_EQ(parse_metrics_line(metrics_line(metrics), "m").mfu, 0.4375);
  EXPECT_TRUE(has_scalar());
}

}  // namespace
}  // namespace tessera::run
