// Tests the iterations of Muon, and its stages for single elements. tests/tools/test_muon.py compares them with numpy
// and torch.
#include "tessera/ops/optimizer/matrices/newton_schulz.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/optimizer/matrices/muon.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

constexpr std::pair<std::int64_t, std::int64_t> kMuonShapes[] = {{1, 1},   {1, 37},  {37, 1},  {16, 16},
                                                                 {24, 65}, {65, 24}, {60, 12}, {33, 64}};

at::Tensor iterated(const at::Tensor& u, int steps = 5) {
  at::Tensor x = u.clone();
  newton_schulz({.u = u.const_data_ptr(),
                 .x = x.mutable_data_ptr(),
                 .count = u.size(0),
                 .rows = u.size(1),
                 .cols = u.size(2),
                 .type = to_dtype(u.scalar_type())},
                steps);
  return x;
}

// The products of the iterations need aligned memory for equal bits, but the caller's matrices begin anywhere.
TEST(NewtonSchulz, BitsDoNotDependOnTheBatchOrOnThePosition) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble})
    for (const auto& [rows, cols] : kMuonShapes) {
      const at::Tensor batch = random_tensor({3, rows, cols}, 11, type);
      const at::Tensor together = iterated(batch);
      for (std::int64_t i = 0; i < 3; ++i) {
        const at::Tensor alone = batch.narrow(0, i, 1).clone();
        EXPECT_TRUE(same_bits(iterated(alone), together.narrow(0, i, 1).clone())) << rows << " x " << cols;
        EXPECT_TRUE(same_bits(iterated(shifted(alone, 1)), together.narrow(0, i, 1).clone()));
      }
      at::Tensor in_place = batch.clone();
      newton_schulz({.u = in_place.const_data_ptr(),
                     .x = in_place.mutable_data_ptr(),
                     .count = 3,
                     .rows = rows,
                     .cols = cols,
                     .type = to_dtype(type)},
                    5);
      EXPECT_TRUE(same_bits(in_place, together));
    }
}

TEST(NewtonSchulz, KeepsZerosAndSmallMatricesFinite) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const double value : values_of(iterated(at::zeros({1, 5, 7}, type)))) EXPECT_EQ(value, 0);
    // A norm below 1e-7 is replaced by 1e-7, so the result stays near zero.
    for (const double value : values_of(iterated(random_tensor({1, 5, 7}, 3, type, 1e-12))))
      EXPECT_LT(std::abs(value), 0.1);
  }
}

// X of one row is a multiple of the row: a polynomial of its norm, applied five times to 1.
TEST(NewtonSchulz, OfOneRowIsAMultipleOfTheUnitRow) {
  const at::Tensor row = random_tensor({1, 1, 50}, 5, at::kDouble);
  double factor = 1;
  for (int step = 0; step < 5; ++step) {
    const double square = factor * factor;
    factor *= kNewtonSchulzA + kNewtonSchulzB * square + kNewtonSchulzC * square * square;
  }
  const double norm = std::sqrt(dot(row, row));
  const Values got = values_of(iterated(row)), values = values_of(row);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], factor * values[i] / norm, 1e-14);
}

TEST(NewtonSchulz, OfATransposedMatrixIsTheTransposedResult) {
  for (const auto& [rows, cols] : kMuonShapes) {
    if (rows == cols) continue;
    const at::Tensor matrix = random_tensor({1, rows, cols}, 5, at::kDouble);
    const Values got = values_of(iterated(matrix.transpose(1, 2).contiguous()).transpose(1, 2).contiguous());
    expect_near(got, values_of(iterated(matrix)), [](std::size_t) { return 1e-12; });
  }
}

TEST(NewtonSchulz, SpreadsNotANumber) {
  at::Tensor matrix = random_tensor({1, 4, 6}, 5, at::kFloat);
  matrix.mutable_data_ptr<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  for (const double value : values_of(iterated(matrix))) EXPECT_TRUE(std::isnan(value));
}

TEST(NewtonSchulz, CountsOperationsAndRefusesNegativeSizes) {
  EXPECT_EQ(newton_schulz_flops(3, 7, 5), 5 * (4 * 9 * 7 + 2 * 27));
  EXPECT_EQ(newton_schulz_flops(7, 3, 5), newton_schulz_flops(3, 7, 5));
  EXPECT_THROW(newton_schulz({.rows = -1, .cols = 1}, 5), Error);
  EXPECT_THROW(newton_schulz({.rows = 1, .cols = 1}, -1), Error);
  newton_schulz({.count = 2, .rows = 0, .cols = 5}, 5);
}

// On a GPU, many small matrices are iterated in groups of at most 256 MiB, and a larger matrix alone.
TEST(NewtonSchulz, StatesTheScratchOfAGroup) {
  const auto scratch = [](std::int64_t count, std::int64_t rows, std::int64_t cols) {
    return newton_schulz_scratch({.count = count, .rows = rows, .cols = cols, .type = quant::DType::bf16});
  };
  constexpr std::int64_t kGroup = std::int64_t{256} << 20;
  EXPECT_EQ(scratch(0, 128, 256), 0);
  EXPECT_EQ(scratch(3, 0, 256), 0);
  const std::int64_t matrix = 2 * 2 * (128 * 256 + 128 * 128);
  EXPECT_EQ(scratch(2, 128, 256) - scratch(1, 128, 256), matrix + 128 * 8);
  EXPECT_EQ(scratch(100000, 128, 256), scratch(kGroup / matrix, 128, 256));
  EXPECT_EQ(scratch(7, 8192, 28672), scratch(1, 8192, 28672));
  EXPECT_GT(scratch(1, 8192, 28672), std::int64_t{4} * (8192 * 28672 + 8192 * 8192));
}

// The buffers of a shard whose directions are computed in one call or in several calls.
struct MuonBuffers {
  at::Tensor gradient, momentum, direction;
};

void direct(const MuonBuffers& it, std::int64_t begin, std::int64_t count, const Muon& options, const Clip& clip) {
  const auto at = [begin](const at::Tensor& tensor) {
    return static_cast<std::byte*>(tensor.mutable_data_ptr()) + begin * static_cast<std::int64_t>(tensor.itemsize());
  };
  const quant::DType accumulator = it.gradient.scalar_type() == at::kDouble ? quant::DType::fp64 : quant::DType::fp32;
  muon_directions(muon_scalars(options, 0.1, 3),
                  {.gradient = at(it.gradient),
                   .gradient_type = to_dtype(it.gradient.scalar_type()),
                   .master_type = accumulator,
                   .plane = at(it.momentum),
                   .direction = at(it.direction),
                   .direction_type = to_dtype(it.direction.scalar_type()),
                   .count = count,
                   .indices = {.first = begin},
                   .rounding_key = state_rounding_key(7, "w")},
                  clip, options.has_bf16_momentum);
}

TEST(Muon, DirectionsDoNotDependOnTheDivisionOfAShard) {
  constexpr std::int64_t kCount = 3001;
  for (const bool has_bf16_momentum : {false, true})
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const Muon options{.has_bf16_momentum = has_bf16_momentum};
      const auto buffers = [&] {
        return MuonBuffers{random_tensor({kCount}, 1, type),
                           random_tensor({kCount}, 2, has_bf16_momentum ? at::kBFloat16 : at::kFloat),
                           at::zeros({kCount}, at::kBFloat16)};
      };
      MuonBuffers whole = buffers(), parts = buffers();
      direct(whole, 0, kCount, options, {.factor = 0.5});
      for (const auto& [begin, end] : {std::pair(0, 1), {1, 6}, {6, 2000}, {2000, 3001}})
        direct(parts, begin, end - begin, options, {.factor = 0.5});
      EXPECT_TRUE(same_bits(whole.momentum, parts.momentum));
      EXPECT_TRUE(same_bits(whole.direction, parts.direction));
      const MuonBuffers before = buffers();
      EXPECT_FALSE(same_bits(whole.momentum, before.momentum));
    }
}

TEST(Muon, ComputesTheFormulaInTheTypeOfTheMaster) {
  for (const bool nesterov : {true, false}) {
    const Muon options{.momentum = 0.9, .weight_decay = 0.2, .nesterov = nesterov};
    const MuonBuffers it{random_tensor({50}, 1, at::kDouble), random_tensor({50}, 2, at::kDouble),
                         at::zeros({50}, at::kDouble)};
    const Values g = values_of(it.gradient), old = values_of(it.momentum);
    direct(it, 0, 50, options, {.factor = 0.25});
    const Values m = values_of(it.momentum), u = values_of(it.direction);
    const at::Tensor master = random_tensor({50}, 3, at::kDouble);
    const Values w = values_of(master);
    muon_update(muon_scalars(options, 0.1, 3),
                {.master = master.mutable_data_ptr(),
                 .master_type = quant::DType::fp64,
                 .gradient = it.direction.const_data_ptr(),
                 .gradient_type = quant::DType::fp64,
                 .count = 50,
                 .factor = 3},
                {});
    const Values updated = values_of(master);
    for (std::size_t i = 0; i < 50; ++i) {
      EXPECT_NEAR(m[i], 0.9 * old[i] + 0.1 * 0.25 * g[i], 1e-15);
      EXPECT_NEAR(u[i], nesterov ? 0.1 * 0.25 * g[i] + 0.9 * m[i] : m[i], 1e-15);
      EXPECT_NEAR(updated[i], w[i] * (1 - 0.1 * 0.2) - 0.1 * 3 * u[i], 1e-15);
    }
  }
}

TEST(Muon, ASuppressedUpdateChangesNothing) {
  const MuonBuffers it{random_tensor({50}, 1, at::kFloat), random_tensor({50}, 2, at::kFloat),
                       at::zeros({50}, at::kFloat)};
  const at::Tensor momentum = it.momentum.clone(), master = random_tensor({50}, 3, at::kFloat), before = master.clone();
  direct(it, 0, 50, {}, {.applies = 0});
  EXPECT_TRUE(same_bits(it.momentum, momentum));
  float amax = 0;
  muon_update(muon_scalars({}, 0.1, 1),
              {.master = master.mutable_data_ptr(),
               .master_type = quant::DType::fp32,
               .gradient = it.gradient.const_data_ptr(),
               .gradient_type = quant::DType::fp32,
               .count = 50,
               .amax = &amax},
              {.applies = 0});
  EXPECT_TRUE(same_bits(master, before));
  EXPECT_GT(amax, 0);
}

TEST(Muon, HasTheScalesOfTorch) {
  EXPECT_EQ(muon_scale(MuonScale::moonshot, 9, 400), 0.2 * 20);
  EXPECT_EQ(muon_scale(MuonScale::moonshot, 400, 9), 0.2 * 20);
  EXPECT_EQ(muon_scale(MuonScale::original, 4, 100), 1);
  EXPECT_EQ(muon_scale(MuonScale::original, 100, 4), 5);
}

TEST(Muon, RefusesWhatItCannotUpdate) {
  EXPECT_THROW(muon_scalars({}, 0.1, 0), Error);
  EXPECT_THROW(make_matrix_rule(Muon{.has_bf16_momentum = true})->planes(quant::DType::fp64), Error);
  EXPECT_THROW(check_shard(DirectionShard{.count = -1}), Error);
  EXPECT_THROW(check_shard(DirectionShard{.count = 1}), Error);
  EXPECT_NE(make_matrix_rule(Muon{})->matrix_rule(), nullptr);
}

}  // namespace
}  // namespace tessera::ops::test
