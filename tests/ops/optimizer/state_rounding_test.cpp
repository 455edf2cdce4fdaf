// Tests stochastic rounding of the optimizer's state, and AdamW with moments in bf16.
#include "tessera/ops/optimizer/state_rounding.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/base/text/name_hash.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tests/ops/on_device.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

using quant::bfloat16;

float of_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// 2^16 random numbers are all that exist, so every one of them is tried: the mean is exact.
TEST(StateRounding, IsUnbiasedBetweenAdjacentNumbers) {
  for (const std::uint32_t bits : {0x3F800000U, 0x3F800001U, 0x3F807FFFU, 0x3F808000U, 0x3F80FFFFU, 0x00000001U,
                                   0x0000C000U, 0x007FFFFFU, 0x7F7E1234U, 0xBF80ABCDU, 0x80001234U, 0xFF7E8001U}) {
    const double value = of_bits(bits), low = of_bits(bits & 0xFFFF0000U),
                 high = of_bits((bits & 0xFFFF0000U) + 0x10000U);
    std::int64_t ups = 0;
    for (std::uint32_t random = 0; random < 0x10000; ++random) {
      const double got = static_cast<float>(round_stochastically(of_bits(bits), random));
      ASSERT_TRUE(got == low || got == high) << bits;
      ups += got == high ? 1 : 0;
    }
    EXPECT_EQ(low + (high - low) * static_cast<double>(ups) / 65536, value) << bits;
  }
}

TEST(StateRounding, KeepsSpecialNumbersAndStaysFinite) {
  for (const std::uint32_t random : {0U, 1U, 0x8000U, 0xFFFFU, 0xABCDFFFFU}) {
    EXPECT_EQ(round_stochastically(0.0F, random).bits, 0);
    EXPECT_EQ(round_stochastically(-0.0F, random).bits, 0x8000);
    EXPECT_EQ(round_stochastically(std::numeric_limits<float>::infinity(), random).bits, 0x7F80);
    EXPECT_EQ(round_stochastically(-std::numeric_limits<float>::infinity(), random).bits, 0xFF80);
    for (const std::uint32_t bits : {0x7F7F0000U, 0x7F7F0001U, 0x7F7FFFFFU})
      for (const std::uint32_t sign : {0U, 0x80000000U})
        EXPECT_EQ(round_stochastically(of_bits(bits | sign), random).bits, (sign >> 16) | 0x7F7F);
    for (const std::uint32_t bits : {0x7FC00000U, 0x7F800001U, 0xFFFFFFFFU})
      EXPECT_TRUE(std::isnan(static_cast<float>(round_stochastically(of_bits(bits), random))));
    EXPECT_EQ(round_stochastically(1.5F, random).bits, 0x3FC0);
  }
}

TEST(StateRounding, BitsFollowTheirDefinition) {
  const base::PhiloxKey key = state_rounding_key(77, "layers.0.a");
  std::uint64_t whole = 77 ^ base::name_hash("layers.0.a");
  for (int i = 0; i < 8; ++i) whole ^= static_cast<std::uint64_t>("moments1"[i]) << (8 * i);
  EXPECT_EQ(key, (base::PhiloxKey{static_cast<std::uint32_t>(whole), static_cast<std::uint32_t>(whole >> 32)}));
  const std::int64_t index = (std::int64_t{5} << 35) + 7, update = (std::int64_t{3} << 32) + 9;
  const auto group = static_cast<std::uint64_t>(index / 4);
  const base::PhiloxCounter words =
      base::philox({static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32), 9, 3}, key);
  StateBits bits(key, update);
  EXPECT_EQ(bits.word(index), words[3]);
  EXPECT_EQ(bits.word(index - 1), words[2]);
  EXPECT_NE(bits.word(index + 1), words[0]);
}

TEST(StateRounding, IndicesOfAPartAreThoseOfTheTensor) {
  const LogicalIndices all{.first = 3}, columns{.first = 12, .row = 2, .stride = 10};
  EXPECT_EQ(all[4], 7);
  for (const auto& [i, index] : {std::pair{0, 12}, {1, 13}, {2, 22}, {5, 33}}) EXPECT_EQ(columns[i], index);
}

// ---- AdamW

constexpr std::int64_t kRows = 7, kCols = 10;

// The state of a matrix [kRows, kCols], and its gradient.
struct Matrix {
  std::vector<float> master, gradient;
  std::vector<bfloat16> weight, exp_avg, exp_avg_sq;
};
Matrix matrix_of(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Matrix matrix;
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    matrix.master.push_back(normal(random));
    matrix.gradient.push_back(normal(random));
    matrix.weight.emplace_back(0.0F);
    matrix.exp_avg.emplace_back(normal(random));
    matrix.exp_avg_sq.emplace_back(std::abs(normal(random)));
  }
  return matrix;
}
UpdateShard shard_of(Matrix& matrix, std::int64_t offset, std::int64_t count, const LogicalIndices& indices,
                     const base::PhiloxKey& key) {
  const auto at = static_cast<std::size_t>(offset);
  return {.master = &matrix.master[at],
          .weight = &matrix.weight[at],
          .weight_type = quant::DType::bf16,
          .gradient = &matrix.gradient[at],
          .planes = {&matrix.exp_avg[at], &matrix.exp_avg_sq[at]},
          .count = count,
          .indices = indices,
          .rounding_key = key};
}
bool same(const Matrix& a, const Matrix& b) {
  const auto bits = [](const std::vector<bfloat16>& values) {
    std::vector<std::uint16_t> result;
    for (const bfloat16 value : values) result.push_back(value.bits);
    return result;
  };
  return a.master == b.master && bits(a.weight) == bits(b.weight) && bits(a.exp_avg) == bits(b.exp_avg) &&
         bits(a.exp_avg_sq) == bits(b.exp_avg_sq);
}
std::shared_ptr<const UpdateRule> rule_of() {
  return make_rule(AdamW{.weight_decay = 0.1, .has_bf16_moments = true});
}
void update(std::span<const UpdateShard> shards, std::int64_t number, bool applies = true) {
  std::vector<std::byte> scalars(rule_of()->scalar_bytes());
  rule_of()->scalars({.lr = 0.01}, number, scalars.data());
  const Clip clip{.factor = 0.7, .applies = applies ? 1 : 0};
  rule_of()->update(shards, scalars.data(), &clip, {});
}

const base::PhiloxKey kKey = state_rounding_key(5, "w");

TEST(Bf16Moments, ArePlanesOfTheRule) {
  const std::vector<StatePlane> planes = rule_of()->planes(quant::DType::fp32);
  ASSERT_EQ(planes.size(), 2);
  EXPECT_EQ(planes[0].type, quant::DType::bf16);
  EXPECT_EQ(planes[1].type, quant::DType::bf16);
  EXPECT_EQ(state_bytes(*rule_of(), 10, quant::DType::fp32), 40);
  EXPECT_THROW(rule_of()->planes(quant::DType::fp64), Error);
}

// The weight follows from the moments before they are rounded.
TEST(Bf16Moments, AreRoundedAfterTheUpdate) {
  Matrix matrix = matrix_of(1), before = matrix;
  const UpdateShard whole = shard_of(matrix, 0, kRows * kCols, {}, kKey);
  update({&whole, 1}, 3);
  std::vector<float> exp_avg, exp_avg_sq;
  for (const bfloat16 value : before.exp_avg) exp_avg.push_back(static_cast<float>(value));
  for (const bfloat16 value : before.exp_avg_sq) exp_avg_sq.push_back(static_cast<float>(value));
  UpdateShard wide = shard_of(before, 0, kRows * kCols, {}, kKey);
  wide.planes = {exp_avg.data(), exp_avg_sq.data()};
  adamw(step_scalars({.weight_decay = 0.1}, 0.01, 3), wide, {.factor = 0.7});
  EXPECT_EQ(matrix.master, before.master);
  StateBits bits(kKey, 3);
  for (std::size_t i = 0; i < exp_avg.size(); ++i) {
    const std::uint32_t word = bits.word(static_cast<std::int64_t>(i));
    EXPECT_EQ(matrix.exp_avg[i].bits, round_stochastically(exp_avg[i], word).bits);
    EXPECT_EQ(matrix.exp_avg_sq[i].bits, round_stochastically(exp_avg_sq[i], word >> 16).bits);
  }
}

// Parts by rows, by columns and of single elements have the bits of the whole.
TEST(Bf16Moments, DoNotDependOnTheDivision) {
  Matrix expected = matrix_of(1), parts = expected;
  const UpdateShard whole = shard_of(expected, 0, kRows * kCols, {}, kKey);
  update({&whole, 1}, 3);
  std::vector<UpdateShard> shards;
  for (std::int64_t begin = 0, count = 1; begin < kRows * kCols; begin += count, ++count)
    shards.push_back(shard_of(parts, begin, std::min(count, kRows * kCols - begin), {.first = begin}, kKey));
  update(shards, 3);
  EXPECT_TRUE(same(parts, expected));

  // Columns 3 to 5 of all rows, as one dense part.
  Matrix dense = matrix_of(1), original = dense;
  std::size_t to = 0;
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t col = 3; col < 6; ++col, ++to) {
      const auto from = static_cast<std::size_t>(row * kCols + col);
      dense.master[to] = original.master[from], dense.gradient[to] = original.gradient[from];
      dense.exp_avg[to] = original.exp_avg[from], dense.exp_avg_sq[to] = original.exp_avg_sq[from];
    }
  const UpdateShard columns = shard_of(dense, 0, kRows * 3, {.first = 3, .row = 3, .stride = kCols}, kKey);
  update({&columns, 1}, 3);
  to = 0;
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t col = 3; col < 6; ++col, ++to)
      EXPECT_EQ(dense.exp_avg[to].bits, expected.exp_avg[static_cast<std::size_t>(row * kCols + col)].bits);
}

TEST(Bf16Moments, HaveOtherBitsInOtherUpdatesAndParameters) {
  const auto run = [](std::int64_t number, const base::PhiloxKey& key) {
    Matrix matrix = matrix_of(1);
    const UpdateShard whole = shard_of(matrix, 0, kRows * kCols, {}, key);
    update({&whole, 1}, number);
    std::vector<std::uint16_t> bits;
    for (const bfloat16 value : matrix.exp_avg) bits.push_back(value.bits);
    return bits;
  };
  EXPECT_EQ(run(3, kKey), run(3, kKey));
  const std::set<std::vector<std::uint16_t>> all{run(3, kKey), run(4, kKey), run(3, state_rounding_key(6, "w")),
                                                 run(3, state_rounding_key(5, "v"))};
  EXPECT_EQ(all.size(), 4);
}

TEST(Bf16Moments, StayWithoutAnUpdate) {
  Matrix matrix = matrix_of(1);
  const Matrix before = matrix;
  const UpdateShard whole = shard_of(matrix, 0, kRows * kCols, {}, kKey);
  update({&whole, 1}, 3, /*applies=*/false);
  EXPECT_TRUE(same(matrix, before));
}

// With beta2 0.999 a step changes the mean of squares by less than half a unit in the last place of bf16, so rounding
// to nearest stops it. 400 elements have random squares of mean 1.
TEST(Bf16Moments, FollowTheMeanOfSquaresThatNearestRoundingLoses) {
  constexpr int kElements = 400, kSteps = 10000;
  constexpr float kBeta = 0.999F;
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  std::vector<bfloat16> rounded(kElements, bfloat16(0.0F)), nearest = rounded;
  std::vector<double> exact(kElements, 0);
  for (int step = 1; step <= kSteps; ++step) {
    StateBits bits(kKey, step);
    for (int i = 0; i < kElements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const float g = normal(random), rest = (1 - kBeta) * g * g;
      exact[at] = 0.999 * exact[at] + 0.001 * static_cast<double>(g) * g;
      rounded[at] = round_stochastically(std::fma(kBeta, static_cast<float>(rounded[at]), rest), bits.word(i) >> 16);
      nearest[at] = bfloat16(std::fma(kBeta, static_cast<float>(nearest[at]), rest));
    }
  }
  double sum = 0, of_rounded = 0, of_nearest = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    sum += exact[i];
    of_rounded += static_cast<float>(rounded[i]);
    of_nearest += static_cast<float>(nearest[i]);
  }
  EXPECT_NEAR(of_rounded / sum, 1, 0.01);
  EXPECT_GT(std::abs(of_nearest / sum - 1), 0.01);
}

// ---- GPU

// Shards of all types, with parts at odd indices and parts of columns.
TEST(OnCudaMoments, HaveTheBitsOfTheHost) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16})
    for (const at::ScalarType weight : {at::kFloat, at::kBFloat16}) {
      std::vector<UpdateShard> host, device;
      std::vector<std::pair<at::Tensor, at::Tensor>> tensors;
      std::uint64_t seed = 1;
      for (const std::int64_t count : {1, 5, 4096, 10000, 30001})
        for (const LogicalIndices& indices : {LogicalIndices{},
                                              {.first = 3},
                                              {.first = 8},
                                              {.first = (std::int64_t{1} << 34) + 4},
                                              {.first = 12, .row = 12, .stride = 1000},
                                              {.first = 5, .row = 7, .stride = 19}}) {
          UpdateShard shard{.master_type = quant::DType::fp32,
                            .weight_type = to_dtype(weight),
                            .gradient_type = to_dtype(gradient),
                            .count = count,
                            .indices = indices,
                            .rounding_key = state_rounding_key(seed, "w")};
          UpdateShard on_gpu = shard;
          const auto add = [&](at::ScalarType type, bool is_square) {
            at::Tensor values = random_tensor({count}, seed++, type);
            if (is_square) values = values.abs();
            tensors.emplace_back(values, on_device(values));
            return std::pair{tensors.back().first.mutable_data_ptr(), tensors.back().second.mutable_data_ptr()};
          };
          std::tie(shard.master, on_gpu.master) = add(at::kFloat, false);
          std::tie(shard.weight, on_gpu.weight) = add(weight, false);
          std::tie(shard.gradient, on_gpu.gradient) = add(gradient, false);
          std::tie(shard.planes[0], on_gpu.planes[0]) = add(at::kBFloat16, false);
          std::tie(shard.planes[1], on_gpu.planes[1]) = add(at::kBFloat16, true);
          host.push_back(shard), device.push_back(on_gpu);
        }
      std::vector<std::byte> scalars(rule_of()->scalar_bytes());
      for (const std::int64_t number : {std::int64_t{1}, (std::int64_t{1} << 32) + 2}) {
        rule_of()->scalars({.lr = 0.01}, number, scalars.data());
        const Clip clip{.factor = 0.7};
        StepScalars of_step;
        std::memcpy(&of_step, scalars.data(), sizeof of_step);
        const at::Tensor on_gpu = object_on_device(of_step), factor = object_on_device(clip);
        rule_of()->update(host, scalars.data(), &clip, {});
        base::cuda_only<cuda::adamw>(device, static_cast<const StepScalars*>(on_gpu.data_ptr()),
                                     static_cast<const Clip*>(factor.data_ptr()), stream_of(on_gpu),
                                     /*has_bf16_moments=*/true);
      }
      for (const auto& [on_host, on_card] : tensors) ASSERT_TRUE(same_bits(on_card, on_host));
    }
}

}  // namespace
}  // namespace tessera::ops::test
