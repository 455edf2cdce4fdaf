// Tests the sums of squares of rows on a CUDA device. Skipped without a device.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/cuda_only.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/optimizer/square_sums.h"
#include "tessera/ops/tensor.h"
#include "tests/ops/on_device.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

constexpr at::ScalarType kSquaredTypes[] = {at::kFloat, at::kBFloat16, at::kDouble};

class OnCudaSquares : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
};

// Returns the elements behind the first one, which have another alignment.
at::Tensor behind(const at::Tensor& tensor) {
  return tensor.narrow(0, 1, tensor.size(0) - 1);
}

TEST_F(OnCudaSquares, AddInFp64) {
  for (const at::ScalarType type : kSquaredTypes)
    for (const std::int64_t cols : {0, 1, 17, 1000, 1025, 1800, 2048, 3000, 4096, 5000, 8192}) {
      const std::int64_t rows = 9, stride = cols + 8;
      const at::Tensor host = random_tensor({rows, stride}, 1, type), values = on_device(host);
      at::Tensor sums = on_device(random_tensor({rows}, 2, at::kDouble)), alone = sums.clone();
      Values expected(rows);
      row_square_sums(host.const_data_ptr(), to_dtype(type), rows, cols, stride, expected.data());
      base::cuda_only<cuda::row_square_sums>(values.const_data_ptr(), to_dtype(type), rows, cols, stride,
                                             sums.mutable_data_ptr<double>(), stream_of(values), /*states=*/nullptr);
      // Two sums of `cols` positive terms in fp64.
      expect_near(values_of(sums), expected,
                  [&](std::size_t i) { return 2 * static_cast<double>(cols + 1) * 0x1p-53 * expected[i]; });
      const at::Tensor shifted = on_device(random_tensor({7 * cols + 1}, 3, type));
      // Another address and another stride give the same bits.
      behind(shifted).copy_(host.narrow(0, 2, 7).narrow(1, 0, cols).reshape({-1}));
      base::cuda_only<cuda::row_square_sums>(behind(shifted).const_data_ptr(), to_dtype(type), 7, cols, cols,
                                             alone.mutable_data_ptr<double>(), stream_of(values), /*states=*/nullptr);
      EXPECT_TRUE(same_bits(alone.narrow(0, 0, 7), sums.narrow(0, 2, 7)));
      // Rows whose state is 0 count as zeros.
      const at::Tensor states = at::arange(rows, at::kByte).remainder(3);
      base::cuda_only<cuda::row_square_sums>(values.const_data_ptr(), to_dtype(type), rows, cols, stride,
                                             alone.mutable_data_ptr<double>(), stream_of(values),
                                             on_device(states).const_data_ptr<std::uint8_t>());
      EXPECT_TRUE(same_bits(alone, sums.mul(on_device(states.ne(0)))));
    }
}

// Blocks of `elements` adjacent elements are dealt to 32 threads, or to 256 if each of 256 gets more than one block. A
// thread adds its squares in order, the lanes of a warp add in halves, and the sums of warps are added in order.
double sum_in_order(const Values& row, std::size_t elements) {
  const std::size_t threads = row.size() <= 256 * elements ? 32 : 256;
  Values sums(threads);
  for (std::size_t i = 0; i < row.size(); ++i) {
    double& sum = sums[i / elements % threads];
    sum = std::fma(row[i], row[i], sum);
  }
  double all = 0;
  for (std::size_t warp = 0; warp < threads; warp += 32) {
    for (std::size_t distance = 16; distance > 0; distance /= 2)
      for (std::size_t lane = 0; lane < distance; ++lane) sums[warp + lane] += sums[warp + lane + distance];
    all = warp == 0 ? sums[0] : all + sums[warp];
  }
  return all;
}

TEST_F(OnCudaSquares, AddInTheirOrder) {
  for (const at::ScalarType type : kSquaredTypes)
    for (const std::int64_t cols : {5, 768, 1025, 1026, 2048, 2049, 4000, 4096, 4097, 9000}) {
      constexpr std::int64_t kRows = 11;
      const at::Tensor host = random_tensor({kRows, cols}, 1, type), values = on_device(host);
      const at::Tensor sums = on_device(random_tensor({kRows}, 2, at::kDouble));
      base::cuda_only<cuda::row_square_sums>(values.const_data_ptr(), to_dtype(type), kRows, cols, cols,
                                             sums.mutable_data_ptr<double>(), stream_of(values), /*states=*/nullptr);
      Values expected;
      for (std::int64_t row = 0; row < kRows; ++row)
        expected.push_back(sum_in_order(values_of(host[row]), type == at::kDouble ? 2 : 4));
      EXPECT_EQ(values_of(sums), expected) << c10::toString(type) << ", " << cols << " columns";
    }
}

}  // namespace
}  // namespace tessera::ops::test
