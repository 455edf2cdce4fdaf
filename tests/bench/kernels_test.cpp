// Checks that the benchmark `kernels` lists every kernel and prints its measurements.
#include "tessera/bench/kernels/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "tessera/base/cuda_only.h"
#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/bench/kernels/kernels_clock.h"
#include "tessera/ops/tensor.h"

namespace tessera::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

KernelBench small() {
  return {.tokens = 3,
          .hidden = 10,
          .ffn = 7,
          .q_heads = 2,
          .kv_heads = 1,
          .head_dim = 6,
          .vocabulary = 40,
          .experts = 5,
          .choices = 2,
          .expert_width = 4,
          .parameters = 1000,
          .repetitions = 2};
}

TEST(Kernels, MeasuresEveryType) {
  for (const quant::DType type : {quant::DType::bf16, quant::DType::fp32, quant::DType::fp64}) {
    KernelBench bench = small();
    bench.type = type;
    const std::vector<KernelRow> rows = kernel_rows(bench);
    std::set<std::string> names;
    for (const KernelRow& row : rows) {
      EXPECT_GT(row.bytes, 0) << row.name;
      EXPECT_GT(row.seconds, 0) << row.name;
      EXPECT_DOUBLE_EQ(row.share() * rows[0].rate(), row.rate());
      EXPECT_EQ(row.operations > 0, row.name.starts_with("gemm") || row.name.starts_with("attention") ||
                                        row.name.starts_with("experts_gemm"))
          << row.name;
      names.insert(row.name);
    }
    EXPECT_EQ(names.size(), rows.size());
    for (const char* name : {"copy", "rms_norm_backward", "rms_norm_forward_parts", "swiglu_forward", "experts_combine",
                             "embedding_backward", "ordered_sum", "fill_normal"})
      EXPECT_TRUE(names.contains(name)) << name;

    const nlohmann::ordered_json json = kernel_json(bench, rows);
    ASSERT_EQ(json.at("rows").size(), rows.size());
    EXPECT_EQ(json.at("rows").back().at("seconds"), rows.back().seconds);
    EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(kernel_text(bench, rows), '\n')), rows.size() + 3);
  }
}

TEST(Kernels, OnlySelectsByName) {
  KernelBench bench = small();
  bench.only = "swiglu";
  const std::vector<KernelRow> rows = kernel_rows(bench);
  ASSERT_EQ(rows.size(), 7u);  // the copy; forward, backward and backward with the result, dense and of experts
  EXPECT_EQ(rows[1].bytes, 3 * 3 * 7 * 2);
}

// A multiplication and an addition are two operations. A gradient's sum reads four parts and the gradient, and writes
// the gradient.
TEST(Kernels, CountsBytesAndOperations) {
  KernelBench bench = small();
  bench.only = "gemm_wgrad";
  EXPECT_EQ(kernel_rows(bench).at(1).operations, 2 * 3 * 10 * 14);
  EXPECT_EQ(kernel_rows(bench).at(1).bytes, 3 * 10 * 2 + 10 * 14 * 4 + 3 * 14 * 2);
  bench.only = "attention_forward";
  EXPECT_EQ(kernel_rows(bench).at(1).operations, 2 * 3 * 3 * 2 * 6);
  EXPECT_EQ(kernel_rows(bench).at(1).bytes, 2 * 3 * 4 * 6 + 2 * 3 * 2 * 6);
  bench.only = "attention_backward";
  EXPECT_EQ(kernel_rows(bench).at(1).operations, 5 * 3 * 3 * 2 * 6);
  EXPECT_EQ(kernel_rows(bench).at(1).bytes, 2 * (2 * 3 * 4 * 6 + 2 * 3 * 2 * 6));
  bench.only = "ordered_sum";
  EXPECT_EQ(kernel_rows(bench).at(1).bytes, 1000 * (4 * 2 + 2 * 4));
}

TEST(Kernels, RefusesInvalidSizes) {
  KernelBench bench = small();
  bench.tokens = 0;
  EXPECT_THAT([&] { kernel_rows(bench); },
              ThrowsMessage<InputError>(HasSubstr("tokens: expected 1 to 67108864, got 0")));
  bench = small();
  bench.threads = 0;
  EXPECT_THAT([&] { kernel_rows(bench); }, ThrowsMessage<InputError>(HasSubstr("threads: expected 1 to 4096, got 0")));
  bench = small();
  bench.head_dim = 5;
  EXPECT_THAT([&] { kernel_rows(bench); },
              ThrowsMessage<InputError>(HasSubstr("head-dim: expected an even number, got 5")));
  bench = small();
  bench.type = quant::DType::i32;
  EXPECT_THAT([&] { kernel_rows(bench); }, ThrowsMessage<InputError>(HasSubstr("dtype: expected bf16, fp32 or fp64")));
}

// Four copies take four times as long as one copy, no copies take no time, and the parts add up to the whole.
TEST(EventClock, PartsAddUpToTheWhole) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const at::Tensor from = ops::make({1 << 28}, at::kByte, at::kCUDA), to = from.clone();
  const auto copies = [&](int count) {
    return [&, count] {
      for (int i = 0; i < count; ++i) to.copy_(from);
    };
  };
  const std::vector<std::function<void()>> parts = {copies(20), [] {}, copies(80)};
  const auto clock = base::cuda_only<make_event_clock>();
  clock->seconds_of_parts(parts);
  const std::vector<double> seconds = clock->seconds_of_parts(parts);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_GT(seconds[0], 20 * 2e-5);  // at 25 TB/s
  EXPECT_NEAR(seconds[2] / seconds[0], 4, 1);
  EXPECT_LT(seconds[1], seconds[0] / 10);
  const double whole = clock->seconds_of(100, [&](int) { to.copy_(from); });
  EXPECT_NEAR((seconds[0] + seconds[1] + seconds[2]) / whole, 1, 0.25);
}

}  // namespace
}  // namespace tessera::bench
