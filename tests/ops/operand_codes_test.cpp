// Tests operands that are made of the codes of several ranks. They must equal the operands of the whole matrix.
#include "tessera/ops/gemm/operand_codes.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/nan_to_num.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/work.h"
#include "tests/ops/values.h"

namespace tessera::ops::test::codes {
namespace {

using quant::Encoding, quant::Format;

// The rows of the ranks. All ranks but the last have multiples of 128 rows, so that each begins at a tile.
const std::vector<std::int64_t> kRanks[] = {{1}, {128, 5}, {128, 0, 128}, {0, 128, 17}};
constexpr std::int64_t kCols[] = {1, 7, 16, 131, 144};

// Values whose magnitudes differ between rows and columns, with zeros.
at::Tensor matrix_of(std::int64_t rows, std::int64_t cols, const at::TensorOptions& options) {
  at::Tensor values = random_tensor({rows, cols}, 3, at::TensorOptions(at::kFloat));
  auto* element = values.mutable_data_ptr<float>();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col, ++element)
      *element *=
          (row + col) % 11 == 0 ? 0.0F : std::ldexp(1.0F, static_cast<int>(row * 3 / 16 % 7 - 3 + col / 16 % 5));
  return values.to(options);
}

WholeScale scale_for(const at::Tensor& matrix, const Encoding& encoding) {
  return needs_whole(encoding) ? whole_scale(encoding, amax_of(matrix)) : WholeScale();
}

// Quantizes the rows of each rank alone, and makes the operand of all of them.
Operand gathered(const at::Tensor& matrix, const std::vector<std::int64_t>& ranks, const Quantization& as, Sides side) {
  std::vector<at::Tensor> bytes;
  std::int64_t first = 0;
  for (const std::int64_t rows : ranks) {
    const OperandCodes codes = operand_codes(matrix.narrow(0, first, rows), as);
    bytes.push_back(side == Sides::columns && codes.columns.defined() ? codes.columns : codes.rows);
    EXPECT_EQ(bytes.back().numel(), bytes_of_codes(as.encoding, {.rows = rows, .cols = matrix.size(1)}, side));
    first += rows;
  }
  return operand_of_gathered(
      {.bytes = at::cat(bytes), .rows = ranks, .cols = matrix.size(1), .encoding = as.encoding, .whole = as.whole.rows},
      side);
}

bool are_equal(const at::Tensor& left, const at::Tensor& right) {
  if (left.defined() != right.defined()) return false;
  return !left.defined() || left.equal(right) ||
         (left.is_floating_point() && left.isnan().equal(right.isnan()) &&
          left.nan_to_num(0).equal(right.nan_to_num(0)));
}

// The padding of GPU operands may differ: its codes are zero.
at::Tensor without_padding(const at::Tensor& padded, std::int64_t rows, std::int64_t cols) {
  return padded.defined() ? padded.narrow(0, 0, rows).narrow(1, 0, cols) : padded;
}
void expect_equal(const Operand& got, const Operand& expected) {
  EXPECT_EQ(got.extent, expected.extent);
  EXPECT_EQ(got.encoding, expected.encoding);
  EXPECT_EQ(got.is_transposed, expected.is_transposed);
  EXPECT_TRUE(are_equal(got.values, expected.values));
  EXPECT_TRUE(are_equal(got.codes, expected.codes));
  const bool has_blocks = got.codes.defined() && !has_one_scale(got.encoding);
  const auto scales = [&](const Operand& operand) {
    return has_blocks ? without_padding(operand.scales, operand.scales.size(0), operand.extent.rows) : operand.scales;
  };
  EXPECT_TRUE(are_equal(scales(got), scales(expected)));
  EXPECT_TRUE(are_equal(got.amax, expected.amax));
}

class OperandCodesTest : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
  at::TensorOptions bf16() const { return at::TensorOptions(at::kBFloat16).device(GetParam()); }

  void expect_whole(const at::Tensor& matrix, const std::vector<std::int64_t>& ranks, const Encoding& encoding) {
    const WholeScale scale = scale_for(matrix, encoding);
    const Operands expected = quantize(matrix, encoding, Sides::both, scale);
    for (const Sides sides : {Sides::rows, Sides::columns, Sides::both}) {
      const Quantization as{.encoding = encoding, .sides = sides, .whole = scale};
      if (sides != Sides::columns) expect_equal(gathered(matrix, ranks, as, Sides::rows), expected.rows);
      if (sides != Sides::rows) expect_equal(gathered(matrix, ranks, as, Sides::columns), expected.columns);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, OperandCodesTest, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "Cpu" : "Cuda"; });

TEST_P(OperandCodesTest, OfAllRanksEqualTheOperandsOfTheWholeMatrix) {
  for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4})
    for (const std::vector<std::int64_t>& ranks : kRanks)
      for (const std::int64_t cols : kCols) {
        SCOPED_TRACE(testing::Message() << name_of(format) << " " << testing::PrintToString(ranks) << " x " << cols);
        const std::int64_t rows = std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0});
        const at::Tensor matrix = matrix_of(rows, cols, bf16());
        expect_whole(matrix, ranks, quant::input_encoding(format));
        if (format == Format::fp8)
          expect_whole(matrix, ranks, quant::gradient_encoding(format, quant::Fp8Recipe::hybrid));
      }
}

// Rows may begin anywhere if only the operand by rows is made.
TEST_P(OperandCodesTest, ByRowsNeedNoTiles) {
  for (const Format format : {Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
    const at::Tensor matrix = matrix_of(13, 75, bf16());
    const Encoding encoding = quant::input_encoding(format);
    const Quantization as{.encoding = encoding, .sides = Sides::rows, .whole = scale_for(matrix, encoding)};
    expect_equal(gathered(matrix, {3, 0, 9, 1}, as, Sides::rows), quantize(matrix, as).rows);
  }
}

TEST_P(OperandCodesTest, KeepValuesThatAreNotFinite) {
  for (const Format format : {Format::fp8_block, Format::mxfp8, Format::nvfp4})
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const at::Tensor matrix = matrix_of(145, 40, bf16());
      matrix[130][17] = bad;
      const Encoding encoding = quant::input_encoding(format);
      const Quantization as{.encoding = encoding, .sides = Sides::both, .whole = scale_for(matrix, encoding)};
      for (const Sides side : {Sides::rows, Sides::columns}) {
        const Operand got = gathered(matrix, {128, 17}, as, side);
        if (got.values.defined()) {
          EXPECT_TRUE(got.values.isnan().any().item<bool>());
        }
        Operands whole = quantize(matrix, as);
        expect_equal(got, side == Sides::rows ? whole.rows : whole.columns);
      }
    }
}

TEST(OperandCodes, HaveTheBytesOfTheFormat) {
  const auto bytes = [](Format format, std::int64_t rows, std::int64_t cols, Sides side) {
    return bytes_of_codes(quant::input_encoding(format), {.rows = rows, .cols = cols}, side);
  };
  for (const Sides side : {Sides::rows, Sides::columns}) {
    EXPECT_EQ(bytes(Format::fp8, 7, 3, side), 21);
    EXPECT_EQ(bytes(Format::fp8_block, 256, 512, side), 256 * 512 + 4 * 256 * 512 / 128);
    EXPECT_EQ(bytes(Format::mxfp8, 256, 512, side), 256 * 512 + 256 * 512 / 32);
    EXPECT_EQ(bytes(Format::nvfp4, 256, 512, side), 256 * 512 / 2 + 256 * 512 / 16);
    for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4})
      EXPECT_EQ(bytes(format, 0, 512, side), 0);
  }
  EXPECT_EQ(bytes(Format::nvfp4, 3, 17, Sides::rows), 16 + 32);     // 3 x 2 scales, 3 x 9 bytes of codes
  EXPECT_EQ(bytes(Format::nvfp4, 17, 3, Sides::columns), 16 + 48);  // 2 x 4 scales, 17 x 2 bytes of codes
}

TEST(OperandCodes, AreNotMadeOfSquareTiles) {
  const at::Tensor matrix = matrix_of(16, 16, at::TensorOptions(at::kBFloat16));
  const Encoding encoding = quant::weight_encoding(Format::nvfp4);
  EXPECT_THAT([&] { operand_codes(matrix, {.encoding = encoding, .whole = scale_for(matrix, encoding)}); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("a tile covers 16 rows, expected 1")));
}

// A dry run has the shapes of a run, and reports the bytes that are read and written.
TEST(OperandCodes, ReportTheirWorkInADryRun) {
  for (const Format format : {Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
    const Encoding encoding = quant::input_encoding(format);
    const at::Tensor matrix = at::empty({256, 512}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
    double quantized = 0, decoded = 0;
    const WorkScope scope(
        [&](const Work& work) { (std::string_view(work.name) == "quantize" ? quantized : decoded) += work.bytes; });
    const at::Tensor amax = at::empty({1}, matrix.options().dtype(at::kFloat));
    const Quantization as{
        .encoding = encoding, .sides = Sides::rows, .whole = WholeScale{.multiplier = {}, .inverse = {}, .amax = amax}};
    const OperandCodes codes = operand_codes(matrix, as);
    const auto bytes = static_cast<double>(bytes_of_codes(encoding, {.rows = 256, .cols = 512}, Sides::rows));
    EXPECT_EQ(quantized, 2 * 256 * 512 + bytes);
    const Operand operand = operand_of_gathered({codes.rows, {256}, 512, encoding, as.whole.rows}, Sides::rows);
    EXPECT_EQ(operand.extent, (quant::Extent{256, 512}));
    EXPECT_EQ(decoded, bytes + (format == Format::fp8_block ? bytes : 2 * 256 * 512));
  }
}

}  // namespace
}  // namespace tessera::ops::test::codes
