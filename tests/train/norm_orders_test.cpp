// The order in which the norm adds. Squares of rows come from the last sum of a gradient or, where that cannot give
// them, from a pass of their own: the same bits, or the norm would depend on how a model is cut.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tessera/base/cuda_lane.h"
#include "tessera/base/device.h"
#include "tessera/ops/adamw.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/train/gradient_norm.h"

namespace tessera::train {
namespace {

// Two parameters of two rows; the second row's parts lie apart, in another order than they are added in. 2^53 + 1 is
// 2^53 and 2^53 + 3 is 2^53 + 4, so that each other order would give another sum.
TEST(NormOrders, PartsOfARowThenRowsThenParameters) {
  const double big = 0x1p53;
  const RowIndex index{.begins = {0, 1, 4, 5, 6}, .positions = {0, 4, 2, 1, 3, 5}, .ends = {2, 4}};
  EXPECT_EQ(index.rows(), 4);
  EXPECT_EQ(index.sum(std::vector<double>{big, 1, 1, 1, 1, 1}), big + 6);  // (big + 3) + 2
  EXPECT_EQ(index.sum(std::vector<double>{1, big, 1, 1, 1, 1}), big + 6);  // (1 + (1 + 1 + big)) + 2
  EXPECT_EQ(index.sum(std::vector<double>{1, 1, 1, 1, big, 1}), big + 2);  // (1 + (big + 1 + 1)) + 2
  EXPECT_EQ(RowIndex{}.sum({}), 0);
}

TEST(NormOrders, SumsAndPassesGiveTheSameBits) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const base::Device device = base::cuda_device(0);
  const auto lane = base::make_cuda_lane("norm", device);
  const auto kernels = quant::make_cuda_kernels(device, lane->stream());
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> values(-3, 3);
  for (const std::int64_t cols : {1, 3, 4, 129, 1000, 1024, 1025, 1028, 4096, 14336}) {
    const std::int64_t rows = 37;
    std::vector<float> host(static_cast<std::size_t>(rows * cols));
    for (float& value : host) value = values(random);
    base::Buffer gradient(host.size() * sizeof(float), device);
    base::copy_bytes(gradient.data(), host.data(), gradient.size());
    const auto squares_of = [&](auto work) {
      base::Buffer squares(static_cast<std::size_t>(rows) * sizeof(double), device);
      lane->run([&] { work(squares.as<double>().data()); });
      lane->synchronize();
      std::vector<double> result(static_cast<std::size_t>(rows));
      base::copy_bytes(result.data(), squares.data(), squares.size());
      return result;
    };
    const auto by_pass = squares_of([&](double* squares) {
      ops::cuda::row_square_sums(gradient.data(), quant::DType::fp32, rows, cols, cols, squares, lane->stream());
    });
    const auto by_sum = squares_of([&](double* squares) {
      kernels->ordered_sum_squares(gradient.data(), quant::DType::fp32, true, {}, quant::DType::fp32, rows, cols,
                                   squares);
    });
    EXPECT_EQ(by_pass, by_sum) << cols << " columns";
    EXPECT_GT(by_sum.front(), 0);
  }
}

}  // namespace
}  // namespace tessera::train
