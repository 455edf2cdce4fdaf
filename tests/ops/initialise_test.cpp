#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/initialise/initialise.h"
#include "tessera/ops/initialise/normal.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::ops {
namespace {

double lower_tail(double z) {
  return 0.5 * std::erfc(-z / std::sqrt(2.0));
}

// d(tail) = density dz, and density / tail < |z| + 1 in the tails. An error of 1e-9 in z is therefore a relative error
// of 1e-9 (|z| + 1) of the tail.
TEST(NormalQuantile, InvertsTheDistributionToTheEndsOfTheTails) {
  for (int i = 1; i < 4000; ++i) {
    const double p = std::exp2(-53.0 * i / 4000);  // tails from 1/2 down to 2^-53
    if (p > 0.5) continue;
    const double z = normal_quantile(p);
    EXPECT_NEAR(lower_tail(z) / p, 1.0, 1.2e-9 * (std::abs(z) + 1)) << "p " << p;
    if (1.0 - (1.0 - p) == p) {
      EXPECT_EQ(normal_quantile(1.0 - p), -z);
    }
  }
  for (int i = 1; i < 1000; ++i) {
    const double u = i / 1000.0;
    EXPECT_NEAR(lower_tail(normal_quantile(u)), u, 1e-9);
  }
  EXPECT_EQ(open_uniform(0), 0x1p-53);
  EXPECT_EQ(open_uniform(~std::uint64_t{0}), 1 - 0x1p-53);
  EXPECT_NEAR(normal_quantile(0x1p-53), -8.2095, 1e-3);
}

std::vector<double> normals(std::uint64_t seed, std::string_view name, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  fill_normal({.seed = seed, .name = name, .standard_deviation = 1, .logical_cols = count, .rows = 1, .cols = count},
              values.data(), quant::DType::fp64);
  return values;
}

// The bounds are five standard deviations of each statistic over n independent normal numbers.
TEST(FillNormal, HasTheMomentsAndTailsOfANormal) {
  constexpr double n = 2'000'000;
  const std::vector<double> values = normals(1, "w", static_cast<std::int64_t>(n));
  double sum = 0, square = 0, cube = 0, fourth = 0, lagged = 0;
  std::array<int, 6> beyond{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double z = values[i];
    sum += z;
    square += z * z;
    cube += z * z * z;
    fourth += z * z * z * z;
    if (i > 0) lagged += z * values[i - 1];
    for (std::size_t sigma = 1; sigma < 6; ++sigma) beyond[sigma] += std::abs(z) > static_cast<double>(sigma);
  }
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(cube / n, 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(lagged / n, 0, 5 / std::sqrt(n));
  for (std::size_t sigma = 1; sigma < 6; ++sigma) {
    const double expected = n * 2 * lower_tail(-static_cast<double>(sigma));
    EXPECT_NEAR(beyond[sigma], expected, 5 * std::sqrt(expected) + 1) << sigma << " sigma";
  }
}

TEST(FillNormal, IsIndependentForOtherSeedsAndNames) {
  constexpr std::int64_t n = 100'000;
  const std::vector<double> base = normals(1, "w", n);
  for (const std::vector<double>& other : {normals(2, "w", n), normals(1, "v", n), normals(1, "", n)}) {
    double product = 0;
    for (std::size_t i = 0; i < base.size(); ++i) product += base[i] * other[i];
    EXPECT_NEAR(product / n, 0, 5 / std::sqrt(n));
  }
}

struct Golden {
  std::uint64_t seed;
  std::string_view name;
  std::int64_t index;
  double value;   // values of a separate program, which computes Philox, FNV-1a and the quantile with 40 digits
  double stored;  // the bits that every mesh and device must give
};

TEST(FillNormal, GivesTheRecordedValues) {
  constexpr std::string_view up_name = "model.layers.0.mlp.up_proj.weight",
                             down_name = "model.layers.0.mlp.down_proj.weight";
  const Golden golden[] = {
      {0, "", 0, -1.2584595876794969, -0x1.422a685558f05p+0},
      {7, up_name, 0, 0.49579049666967659, 0x1.fbb0810391a7ap-2},
      {7, up_name, 1, 1.6061413821959828, 0x1.9b2c14e4b4aap+0},
      {7, down_name, 1, 1.2625936870366522, 0x1.43395702e6afbp+0},
      {8, up_name, 1, 0.98063698081297152, 0x1.f6160ce15ee21p-1},
      {0x123456789abcdef, "lm_head.weight", (std::int64_t{1} << 35) + 17, -1.6849110831543185, -0x1.af56552df07bdp+0},
  };
  for (const Golden& g : golden) {
    double value = 0;
    fill_normal({.seed = g.seed,
                 .name = g.name,
                 .standard_deviation = 1,
                 .logical_cols = std::int64_t{1} << 40,
                 .col = g.index,
                 .rows = 1,
                 .cols = 1},
                &value, quant::DType::fp64);
    EXPECT_NEAR(value, g.value, 1e-9) << g.name << " " << g.index;
    EXPECT_EQ(value, g.stored) << std::hexfloat << value;
  }
}

TEST(FillNormal, OfABlockEqualsTheBlockOfTheMatrix) {
  constexpr std::int64_t row_count = 13, columns = 37;
  const auto fill = [](std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    std::vector<float> data(static_cast<std::size_t>(rows * stride), -1.0f);
    fill_normal({.seed = 3,
                 .name = "w",
                 .logical_cols = columns,
                 .row = row,
                 .col = col,
                 .rows = rows,
                 .cols = cols,
                 .stride = stride},
                data.data(), quant::DType::fp32);
    return data;
  };
  const std::vector<float> whole = fill(0, 0, row_count, columns, columns);
  for (const auto& [row, col, rows, cols] : {std::array<std::int64_t, 4>{2, 5, 4, 17},
                                             {12, 36, 1, 1},
                                             {0, 1, 13, 9},
                                             {3, 0, 2, 37},
                                             {5, 5, 0, 3},
                                             {5, 5, 2, 0}}) {
    const std::int64_t stride = cols + 3;
    const std::vector<float> part = fill(row, col, rows, cols, stride);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < stride; ++c)
        EXPECT_EQ(part[static_cast<std::size_t>(r * stride + c)],
                  c < cols ? whole[static_cast<std::size_t>((row + r) * columns + col + c)] : -1.0f);
  }
}

TEST(FillNormal, RoundsOnceFromFp64) {
  constexpr std::int64_t number = 1000;
  std::vector<double> exact(number);
  std::vector<float> single(number);
  std::vector<quant::bfloat16> half(number);
  const NormalFill fill{
      .seed = 5, .name = "w", .standard_deviation = 0.02, .logical_cols = number, .rows = 1, .cols = number};
  fill_normal(fill, exact.data(), quant::DType::fp64);
  fill_normal(fill, single.data(), quant::DType::fp32);
  fill_normal(fill, half.data(), quant::DType::bf16);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(single[i], static_cast<float>(exact[i]));
    EXPECT_NEAR(static_cast<float>(half[i]), exact[i], 0x1p-8 * std::abs(exact[i]));
  }
}

TEST(FillNormal, RejectsColumnsOutsideTheMatrix) {
  float value = 0;
  EXPECT_THROW(
      fill_normal({.name = "w", .logical_cols = 4, .col = 4, .rows = 1, .cols = 1}, &value, quant::DType::fp32), Error);
  EXPECT_THROW(fill_normal({.name = "w", .logical_cols = 4, .rows = 1, .cols = 1}, &value, quant::DType::i32), Error);
}

TEST(FillConstant, WritesTheRoundedValue) {
  std::array<quant::bfloat16, 3> half{};
  fill_constant(1.0, half.data(), quant::DType::bf16, 2);
  EXPECT_EQ(half[0].bits, 0x3F80);
  EXPECT_EQ(half[1].bits, 0x3F80);
  EXPECT_EQ(half[2].bits, 0);
  double exact = 0;
  fill_constant(0.1, &exact, quant::DType::fp64, 1);
  EXPECT_EQ(exact, 0.1);
}

}  // namespace
}  // namespace tessera::ops
