// Tests products of decoded values on a CPU and on a GPU: alpha times the fp64 sum of the decoded values within a
// derived bound, equal operands on both devices, and operands that are kept as codes.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/work.h"
#include "tessera/quant/formats/decoded.h"
#include "tests/ops/values.h"

namespace tessera::ops::test::decoded {
namespace {

using quant::Encoding, quant::Extent, quant::Format;

constexpr Format kFormats[] = {Format::mxfp8, Format::nvfp4};
constexpr double kUnit = 0x1p-24;  // one rounding to fp32

WholeScale scale_for(const at::Tensor& matrix, const Encoding& encoding) {
  return needs_whole(encoding) ? whole_scale(encoding, amax_of(matrix)) : WholeScale();
}

// Returns values whose tiles have different magnitudes in each row and column.
at::Tensor graded(at::IntArrayRef shape, std::uint64_t seed, const at::TensorOptions& options) {
  at::Tensor values = random_tensor(shape, seed, at::TensorOptions(at::kFloat));
  auto* element = values.mutable_data_ptr<float>();
  for (std::int64_t row = 0; row < shape[0]; ++row)
    for (std::int64_t col = 0; col < shape[1]; ++col)
      *element++ *= std::ldexp(1.0F, static_cast<int>(row * 5 / 16 % 7 - 3 + col / 16 % 4));
  return values.to(options);
}

// Returns the decoded values that quant/ defines, in fp64. By columns, the result is the transposed matrix.
at::Tensor decoded_values(const at::Tensor& matrix, Encoding encoding, Sides side, const WholeScale& scale) {
  if (side == Sides::columns) encoding = quant::by_columns(encoding);
  const at::Tensor source = matrix.cpu().contiguous(), values = at::empty(source.sizes(), at::kBFloat16);
  decode_operand({.values = static_cast<const quant::bfloat16*>(source.const_data_ptr()),
                  .matrix = {source.size(0), source.size(1)},
                  .encoding = encoding,
                  .whole = scale.amax.defined() ? scale.amax.cpu().item<float>() : 0.0F},
                 static_cast<quant::bfloat16*>(values.mutable_data_ptr()));
  const at::Tensor wide = values.to(at::kDouble);
  return side == Sides::rows ? wide : wide.t().contiguous();
}

float alpha_of(const WholeScale& left, const WholeScale& right, Format format) {
  if (format != Format::nvfp4) return 1;
  return static_cast<float>(double{left.amax.cpu().item<float>()} * right.amax.cpu().item<float>() / (2688.0 * 2688.0));
}

// One factor of a product: its operand, its decoded values in fp64, and its scale.
struct Side {
  Operand operand;
  at::Tensor values;
  WholeScale scale;
};
Side side_of(const at::Tensor& matrix, const Encoding& encoding, Sides side) {
  const WholeScale scale = scale_for(matrix, encoding);
  Operands both = quantize(matrix, encoding, side, scale);
  return {.operand = side == Sides::rows ? both.rows : both.columns,
          .values = decoded_values(matrix, encoding, side, scale),
          .scale = scale};
}

class DecodedProduct : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
  at::TensorOptions bf16() const { return at::TensorOptions(at::kBFloat16).device(GetParam()); }
  bool on_gpu() const { return GetParam() == at::kCUDA; }
  // Returns a result of NaNs. A product must not read it.
  at::Tensor unwritten(at::IntArrayRef shape, at::ScalarType type) const {
    return at::empty(shape, bf16().dtype(type)).fill_(std::numeric_limits<float>::quiet_NaN());
  }

  // A CPU adds n exact products in fp32, with n - 1 roundings of partial sums of at most sum|a||b|. alpha is rounded
  // once and multiplied with one more rounding. Tensor cores truncate, and align the products of a group to the
  // greatest.
  double bound(double terms) const { return on_gpu() ? terms * 0x1p-22 + 8 * kUnit : (terms + 4) * kUnit; }

  void expect_product(const at::Tensor& got, const Side& left, const Side& right, Format format) const {
    const double alpha = alpha_of(left.scale, right.scale, format);
    const at::Tensor exact = left.values.matmul(right.values.t()).mul(alpha);
    const at::Tensor magnitude = left.values.abs().matmul(right.values.abs().t()).mul(alpha);
    const Values expected = values_of(exact), sizes = values_of(magnitude);
    const double once = got.scalar_type() == at::kBFloat16 ? 1.01 * roundoff(at::kBFloat16) : 0;
    const double sums = bound(static_cast<double>(left.values.size(1)));
    ASSERT_EQ(got.sizes(), exact.sizes());
    expect_near(values_of(got), expected,
                [&](std::size_t i) { return sums * sizes[i] + once * std::abs(expected[i]); });
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, DecodedProduct, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "Cpu" : "Cuda"; });

TEST_P(DecodedProduct, IsAlphaTimesTheSumOfDecodedValues) {
  for (const Format format : kFormats)
    for (const std::int64_t inner : {1, 15, 16, 17, 288, 4096})
      for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{33, 18}, {16, 40}}) {
        SCOPED_TRACE(testing::Message() << name_of(format) << " " << rows << " x " << inner << " x " << cols);
        const Encoding encoding = input_encoding(format), of_weight = weight_encoding(format);
        const Side x = side_of(graded({rows, inner}, 1, bf16()), encoding, Sides::rows);
        const Side w = side_of(graded({cols, inner}, 2, bf16()), of_weight, Sides::rows);
        const Side w_columns = side_of(graded({inner, cols}, 3, bf16()), of_weight, Sides::columns);
        expect_product(multiply(x.operand, w.operand), x, w, format);
        expect_product(multiply(x.operand, w_columns.operand), x, w_columns, format);
        const Side dy = side_of(graded({inner, rows}, 4, bf16()), encoding, Sides::columns);
        const Side x_columns = side_of(graded({inner, cols}, 5, bf16()), encoding, Sides::columns);
        at::Tensor dw = unwritten({rows, cols}, at::kFloat), rounded = unwritten({rows, cols}, at::kBFloat16);
        multiply_into(dy.operand, x_columns.operand, dw, /*accumulate=*/false);
        expect_product(dw, dy, x_columns, format);
        multiply_into(dy.operand, x_columns.operand, rounded, /*accumulate=*/false);
        expect_product(rounded, dy, x_columns, format);
      }
}

// The products of 16 elements of one tile add up exactly in fp32 in any order. So the result has exactly two roundings.
TEST_P(DecodedProduct, OfOneTileHasTheBitsOfTheDefinition) {
  const Encoding encoding = input_encoding(Format::nvfp4);
  for (const std::int64_t inner : {1, 7, 16}) {
    const Side x = side_of(graded({40, inner}, 1, bf16()), encoding, Sides::rows);
    const Side w = side_of(graded({24, inner}, 2, bf16()), encoding, Sides::rows);
    const at::Tensor sums = x.values.matmul(w.values.t()).to(at::kFloat).contiguous();
    const at::Tensor expected = sums.mul(alpha_of(x.scale, w.scale, Format::nvfp4));
    ASSERT_EQ(expected.scalar_type(), at::kFloat);
    at::Tensor wide = unwritten({40, 24}, at::kFloat);
    multiply_into(x.operand, w.operand, wide, /*accumulate=*/false);
    EXPECT_TRUE(same_bits(wide.cpu(), expected)) << inner;
    EXPECT_TRUE(same_bits(multiply(x.operand, w.operand).cpu(), expected.to(at::kBFloat16))) << inner;
  }
}

TEST_P(DecodedProduct, IsNotFiniteIfAlphaIsNot) {
  const Encoding encoding = input_encoding(Format::nvfp4);
  const at::Tensor large = at::zeros({16, 16}, bf16()).fill_(1e30);
  const Side x = side_of(large, encoding, Sides::rows);
  EXPECT_TRUE(std::isinf(alpha_of(x.scale, x.scale, Format::nvfp4)));
  EXPECT_FALSE(multiply(x.operand, x.operand).isfinite().any().item<bool>());
  const Side zero = side_of(at::zeros({16, 16}, bf16()), encoding, Sides::rows);
  EXPECT_EQ(multiply(x.operand, zero.operand).count_nonzero().item<std::int64_t>(), 0);
}

// An amax ignores NaNs, so the amax of these matrices and alpha are 0.
TEST_P(DecodedProduct, OfAMatrixWithOnlyZerosAndNaNsIsNotFinite) {
  const Encoding encoding = input_encoding(Format::nvfp4);
  at::Tensor matrix = at::zeros({40, 64}, bf16());
  matrix.select(0, 3).fill_(std::numeric_limits<float>::quiet_NaN());
  const Side spoiled = side_of(matrix, encoding, Sides::rows);
  EXPECT_EQ(alpha_of(spoiled.scale, spoiled.scale, Format::nvfp4), 0);
  const Side x = side_of(graded({24, 64}, 1, bf16()), encoding, Sides::rows);
  const at::Tensor y = multiply(spoiled.operand, x.operand), across = multiply(x.operand, spoiled.operand);
  EXPECT_TRUE(y.select(0, 3).isnan().all().item<bool>());
  EXPECT_TRUE(across.select(1, 3).isnan().all().item<bool>());
  EXPECT_EQ(y.isnan().sum().item<std::int64_t>(), 24);
  EXPECT_EQ(y.nan_to_num(0.0).count_nonzero().item<std::int64_t>(), 0);
}

at::Tensor special_values(std::int64_t rows, std::int64_t cols) {
  at::Tensor matrix = graded({rows, cols}, 9, at::kBFloat16);
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0x1p-133F,
                          1e-30F};
  for (std::int64_t i = 0; i < 4; ++i) matrix.select(0, i * 37 % rows).select(0, i * 53 % cols).fill_(values[i]);
  matrix.select(0, rows / 2).zero_();
  return matrix;
}

// The bits of NaNs are not compared, because the conversions from fp64 give all NaNs the same bits. The tests of quant
// compare these bits.
TEST_P(DecodedProduct, OperandsHaveTheValuesOfTheDefinition) {
  constexpr Extent kExtents[] = {{1, 2}, {2, 1}, {16, 16}, {17, 33}, {31, 15}, {33, 300}, {300, 97}, {300, 4112}};
  for (const Format format : kFormats)
    for (const Encoding& encoding : {input_encoding(format), weight_encoding(format)})
      for (const auto& [rows, cols] : kExtents)
        for (const bool special : {false, true}) {
          SCOPED_TRACE(testing::Message() << name_of(format) << " " << rows << " x " << cols << " tile "
                                          << encoding.tile.rows << " x " << encoding.tile.cols);
          const at::Tensor host = special ? special_values(rows, cols) : graded({rows, cols}, 1, at::kBFloat16);
          const at::Tensor matrix = host.to(bf16());
          const WholeScale scale = scale_for(matrix, encoding);
          const Operands operands = quantize(matrix, encoding, Sides::both, scale);
          for (const Sides side : {Sides::rows, Sides::columns}) {
            const Operand& operand = side == Sides::rows ? operands.rows : operands.columns;
            at::Tensor values = operand.values.cpu();
            if (operand.is_transposed) values = values.t();
            const at::Tensor expected = decoded_values(host, encoding, side, scale).to(at::kBFloat16);
            EXPECT_TRUE(same_bits(values.to(at::kDouble).to(at::kBFloat16).contiguous(), expected.contiguous()));
          }
        }
}

TEST_P(DecodedProduct, OfKeptColumnsHasTheSameBits) {
  for (const Format format : kFormats)
    for (const auto& [tokens, features] :
         {std::pair<std::int64_t, std::int64_t>{1, 2}, {33, 18}, {64, 31}, {100, 48}}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << " " << tokens << " x " << features);
      const Encoding encoding = input_encoding(format);
      const at::Tensor x = graded({tokens, features}, 1, bf16());
      const Operand dy = side_of(graded({tokens, 24}, 2, bf16()), encoding, Sides::columns).operand;
      const Operands both = quantize(x, encoding, Sides::both, scale_for(x, encoding));
      const Operands kept = quantize(x, encoding, Sides::kept, scale_for(x, encoding));
      EXPECT_TRUE(same_bits(kept.rows.values, both.rows.values));
      EXPECT_TRUE(same_bits(multiply(dy, decode(kept.columns)), multiply(dy, both.columns)));
      EXPECT_EQ(kept.columns.values.defined(), !on_gpu());
      if (!on_gpu()) continue;
      EXPECT_EQ(static_cast<std::int64_t>(kept.columns.codes.nbytes() + kept.columns.scales.nbytes()),
                stored_bytes(kept.columns.extent, kept.columns.encoding));
    }
}

// Bytes of a dry run: 2 read, 2 for the rows, and for kept columns 0.5625 in nvfp4 and 1.03125 in mxfp8.
TEST(DecodedProductOfADryRun, ReportsBf16ProductsAndTheBytesOfQuantization) {
  std::vector<Work> works;
  const WorkScope scope([&](const Work& work) { works.push_back(work); });
  const at::TensorOptions bf16 = at::TensorOptions(at::kBFloat16).device(at::kMeta);
  for (const auto& [format, bytes] : {std::pair{Format::nvfp4, 0.5625}, {Format::mxfp8, 1.03125}}) {
    const Encoding encoding = input_encoding(format);
    const at::Tensor x = at::empty({64, 96}, bf16), dy = at::empty({64, 32}, bf16), w = at::empty({32, 96}, bf16);
    const WholeScale of_x = scale_for(x, encoding), of_dy = scale_for(dy, encoding),
                     of_w = scale_for(w, weight_encoding(format));
    works.clear();
    const Operands input = quantize(x, encoding, Sides::kept, of_x);
    const Operands gradient = quantize(dy, encoding, Sides::both, of_dy);
    const Operand columns = decode(input.columns);
    multiply(input.rows, weight_operand(w, format, Sides::rows, of_w));
    multiply(gradient.rows, weight_operand(w, format, Sides::columns, of_w));
    at::Tensor dw = at::empty({32, 96}, bf16.dtype(at::kFloat));
    multiply_into(gradient.columns, columns, dw, /*accumulate=*/false);
    std::vector<double> memory;
    std::vector<ProductSizes> products;
    for (const Work& work : works)
      if (work.kind == WorkKind::product)
        products.push_back(work.product);
      else
        memory.push_back(work.bytes);
    const double of_matrix = 64 * 96;
    EXPECT_THAT(memory, testing::ElementsAre(of_matrix * (4 + bytes), 64 * 32 * 6.0, of_matrix * (2 + bytes),
                                             32 * 96 * 4.0, 32 * 96 * 4.0));
    EXPECT_THAT(products,
                testing::ElementsAre(ProductSizes{.rows = 64, .cols = 32, .inner = 96, .call = ProductCall::fprop},
                                     ProductSizes{.rows = 64, .cols = 96, .inner = 32, .call = ProductCall::dgrad},
                                     ProductSizes{.rows = 32, .cols = 96, .inner = 64, .call = ProductCall::wgrad}));
  }
}

}  // namespace
}  // namespace tessera::ops::test::decoded
