// Compares products in number formats on a CPU and on a GPU with products of the values of the codes.
#include "tessera/ops/gemm/operand.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/swiglu/swiglu_operand.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/cuda_table.h"
#include "tessera/quant/formats/columnwise.h"
#include "tessera/quant/formats/decoded.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {
using quant::Encoding, quant::Extent, quant::Format, quant::Fp8Recipe;
using testing::HasSubstr, testing::ThrowsMessage;

struct LayerExtents {
  std::int64_t tokens, out, in;
};
constexpr LayerExtents kLayers[] = {{1, 1, 1},    {7, 96, 80}, {33, 17, 129}, {64, 288, 272},
                                    {300, 80, 5}, {0, 16, 16}, {16, 0, 16},   {160, 144, 400}};

// Returns the values of a matrix after a round trip through an encoding, by the definition in quant/.
at::Tensor rounded(const at::Tensor& matrix, const Encoding& encoding, const WholeScale& whole = {}) {
  const at::Tensor source = matrix.cpu().contiguous();
  const Extent extent{source.size(0), source.size(1)};
  if (is_decoded(encoding)) {
    const float amax = source.numel() == 0 ? 0 : source.abs().max().item<float>();
    const at::Tensor decoded = at::empty({extent.rows, extent.cols}, at::kBFloat16);
    decode_operand({static_cast<const quant::bfloat16*>(source.const_data_ptr()), extent, encoding, amax},
                   static_cast<quant::bfloat16*>(decoded.mutable_data_ptr()));
    return decoded.to(at::kDouble).mul(encoding.scale == quant::Scale::e4m3 ? double{amax} / 2688 : 1.0);
  }
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(extent.elements()) + 1);
  std::vector<float> scales(static_cast<std::size_t>(scale_extent(encoding, extent).elements()) + 1);
  float amax = 0;
  const quant::Quantized target{codes.data(), scales.data(), &amax};
  quantize({source.const_data_ptr(), quant::DType::bf16}, extent, encoding, target);
  if (whole.multiplier.defined()) {
    const float multiplier = whole.multiplier.cpu().item<float>();
    cast({source.const_data_ptr(), quant::DType::bf16}, extent, encoding, {.end = extent.elements()}, {&multiplier, 1},
         codes.data());
    scales[0] = whole.inverse.cpu().item<float>();
  }
  at::Tensor values = at::empty({extent.rows, extent.cols}, at::kFloat);
  dequantize(target, extent, encoding, values.mutable_data_ptr<float>());
  return values.to(at::kDouble);
}

class OperandTest : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
  at::TensorOptions bf16() const { return at::TensorOptions(at::kBFloat16).device(GetParam()); }
  bool on_gpu() const { return GetParam() == at::kCUDA; }
  std::vector<Format> formats() const { return {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4}; }
  // A CPU sums n products in fp32, and a decoded product is then multiplied by the rounded alpha. For fp8, Hopper adds
  // 32 products at once and truncates each at 2^-13 of the greatest. In a fast product it also truncates the previous
  // sum.
  double bound(double terms, bool fast) const {
    if (!on_gpu()) return (terms + 4) * std::ldexp(1.0, -24);
    return fast ? std::ldexp(terms + 32, -13) : std::ldexp(1.0, -8);
  }
  void expect_product(const at::Tensor& got, const at::Tensor& left, const at::Tensor& right, bool fast = false) const {
    const at::Tensor exact = left.matmul(right.t()), magnitude = left.abs().matmul(right.abs().t());
    const double once = got.scalar_type() == at::kBFloat16 ? 1.01 * roundoff(at::kBFloat16) : 0;
    const double sums = bound(static_cast<double>(left.size(1)), fast);
    const Values expected = values_of(exact), sizes = values_of(magnitude);
    ASSERT_EQ(got.sizes(), exact.sizes());
    expect_near(values_of(got), expected,
                [&](std::size_t i) { return sums * sizes[i] + once * std::abs(expected[i]) + 1e-37; });
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, OperandTest, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "Cpu" : "Cuda"; });

WholeScale scale_for(const at::Tensor& matrix, const Encoding& encoding) {
  return needs_whole(encoding) ? whole_scale(encoding, amax_of(matrix)) : WholeScale();
}

// The operand of a stored weight, and the memory of its columnwise copy.
struct StoredOperand {
  Operand operand;
  at::Tensor copy = {};
};

// Returns the operand of a weight whose planes are memory of the host for decoded products, and of the device for
// others. Decoded products read the weight's decoded values.
StoredOperand stored_operand(const quant::Quantized& planes, Extent extent, const Encoding& encoding, Sides side,
                             const at::TensorOptions& bf16, const at::Tensor& amax) {
  const at::Device device = bf16.device();
  if (!is_decoded(encoding) && side == Sides::rows) return {borrowed_weight(planes, extent, encoding, device)};
  if (!is_decoded(encoding)) {
    at::Tensor copy = at::empty({quant::columnwise_layout(encoding, extent).bytes()}, bf16.dtype(at::kByte));
    const quant::Transposition work =
        quant::columnwise_copy(planes, extent, encoding, static_cast<std::byte*>(copy.mutable_data_ptr()));
    if (device.is_cpu())
      transpose(work);
    else
      quant::require_cuda("tests").create_columnwise({&work, 1}, stream_of(copy));
    return {borrowed_columns(work.target, extent, encoding, device), std::move(copy)};
  }
  const at::Tensor values = at::empty({extent.rows, extent.cols}, bf16.device(at::kCPU));
  decode(planes, extent, encoding, static_cast<quant::bfloat16*>(values.mutable_data_ptr()));
  return {decoded_weight(values.to(bf16), encoding, side, needs_whole(encoding) ? amax.to(device) : at::Tensor())};
}

// Parts of very different magnitudes, so that a wrong scale is visible.
at::Tensor uneven(at::IntArrayRef shape, std::uint64_t seed, const at::TensorOptions& options) {
  at::Tensor values = random_tensor(shape, seed, at::TensorOptions(at::kFloat));
  for (std::int64_t row = 0; row < shape[0]; ++row)
    values[row].mul_(std::ldexp(1.0, static_cast<int>(row * 7 / 128 % 5 - 2)));
  for (std::int64_t col = 0; col < shape[1]; ++col)
    values.select(1, col).mul_(std::ldexp(1.0, static_cast<int>(col / 16 % 4)));
  return values.to(options);
}

TEST_P(OperandTest, ThreeProductsOfALayer) {
  for (const Format format : formats())
    for (const Fp8Recipe recipe : {Fp8Recipe::hybrid, Fp8Recipe::e4m3})
      for (const LayerExtents& e : kLayers) {
        SCOPED_TRACE(testing::Message() << name_of(format) << " tokens " << e.tokens << " out " << e.out << " in "
                                        << e.in);
        const Encoding of_x = input_encoding(format), of_dy = gradient_encoding(format, recipe);
        const Encoding of_w = weight_encoding(format);
        const at::Tensor x = uneven({e.tokens, e.in}, 1, bf16()), dy = uneven({e.tokens, e.out}, 2, bf16());
        const at::Tensor w = uneven({e.out, e.in}, 3, bf16());
        const WholeScale scale_x = scale_for(x, of_x), scale_dy = scale_for(dy, of_dy), scale_w = scale_for(w, of_w);
        const Operands input = quantize(x, of_x, Sides::both, scale_x);
        const Operands gradient = quantize(dy, of_dy, Sides::both, scale_dy);

        const at::Tensor y = multiply(input.rows, weight_operand(w, format, Sides::rows, scale_w), /*fast=*/true);
        expect_product(y, rounded(x, of_x), rounded(w, of_w), format == Format::fp8);
        const at::Tensor dx = multiply(gradient.rows, weight_operand(w, format, Sides::columns, scale_w));
        expect_product(dx, rounded(dy, of_dy), rounded(w.t().contiguous(), of_w));
        at::Tensor dw = at::empty({e.out, e.in}, bf16().dtype(at::kFloat));
        multiply_into(gradient.columns, input.columns, dw, /*accumulate=*/false);
        expect_product(dw, rounded(dy.t().contiguous(), of_dy), rounded(x.t().contiguous(), of_x));
      }
}

TEST_P(OperandTest, ProductsOfSomeRowsAreThoseOfAMatrixOfTheseRows) {
  for (const Format format : formats()) {
    const Encoding of_x = input_encoding(format);
    const at::Tensor x = uneven({91, 130}, 1, bf16()), w = uneven({40, 130}, 2, bf16());
    const WholeScale scale = scale_for(x, of_x);
    const Operand all = quantize(x, of_x, Sides::rows, scale).rows;
    const Operand weight = weight_operand(w, format, Sides::rows, scale_for(w, weight_encoding(format)));
    at::Tensor y = at::empty({91, 40}, bf16());
    for (const auto& [begin, size] : {std::pair{0, 91}, {0, 32}, {32, 16}, {16, 75}, {5, 20}, {90, 1}, {7, 0}}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << " rows " << begin << " + " << size);
      const at::Tensor alone =
          multiply(quantize(x.narrow(0, begin, size).contiguous(), of_x, Sides::rows, scale).rows, weight);
      const Operand part = operand_of_rows(all, begin, size);
      EXPECT_TRUE(same_bits(multiply(part, weight), alone));
      at::Tensor result = y.narrow(0, begin, size).fill_(77);
      multiply_to(part, weight, result);
      EXPECT_TRUE(same_bits(y.narrow(0, begin, size), alone));
    }
    EXPECT_THROW(operand_of_rows(all, 80, 12), Error);
  }
}

TEST_P(OperandTest, GradientsAreWrittenRoundedOrAdded) {
  for (const Format format : formats()) {
    const Encoding encoding = input_encoding(format);
    const at::Tensor a = uneven({40, 50}, 1, bf16()), b = uneven({24, 50}, 2, bf16());
    const Operands left = quantize(a, encoding, Sides::rows, scale_for(a, encoding));
    const Operands right = quantize(b, encoding, Sides::rows, scale_for(b, encoding));
    at::Tensor exact = at::empty({40, 24}, bf16().dtype(at::kFloat)), rounded_once = at::empty({40, 24}, bf16());
    multiply_into(left.rows, right.rows, exact, false);
    multiply_into(left.rows, right.rows, rounded_once, false);
    // cuBLASLt may add in another order for another type of the result.
    if (!on_gpu() || !is_decoded(format)) {
      EXPECT_TRUE(same_bits(rounded_once, exact.to(at::kBFloat16))) << name_of(format);
    }
    EXPECT_TRUE(same_bits(rounded_once, multiply(left.rows, right.rows))) << name_of(format);
    at::Tensor sum = exact.clone();
    multiply_into(left.rows, right.rows, sum, true);
    EXPECT_TRUE(same_bits(sum, at::add(exact, exact))) << name_of(format);
  }
}

TEST_P(OperandTest, AStoredWeightGivesTheSameOperandAsABf16Weight) {
  for (const Format format : formats()) {
    if (format == Format::mxfp8) continue;  // see the next test
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{80, 288}, {130, 34}, {16, 16}}) {
      const Encoding encoding = weight_encoding(format);
      const at::Tensor w = uneven({rows, cols}, 5, bf16()), host = w.cpu();
      const Extent extent{rows, cols};
      at::Tensor codes = at::empty({data_bytes(encoding.element, extent.elements())}, at::kByte);
      at::Tensor scales = at::empty({4 * scale_extent(encoding, extent).elements()}, at::kByte);
      at::Tensor amax = at::empty({1}, at::kFloat);
      quantize({host.const_data_ptr(), quant::DType::bf16}, extent, encoding,
               {codes.mutable_data_ptr<std::uint8_t>(), scales.mutable_data_ptr(), amax.mutable_data_ptr<float>()});
      if (!is_decoded(encoding)) {
        codes = codes.to(GetParam());
        scales = scales.to(GetParam());
      }
      const quant::Quantized planes{static_cast<std::uint8_t*>(codes.mutable_data_ptr()), scales.mutable_data_ptr(),
                                    amax.mutable_data_ptr<float>()};
      const at::Tensor other_rows = uneven({48, cols}, 6, bf16()), other_columns = uneven({48, rows}, 7, bf16());
      const Encoding of_x = input_encoding(format);
      for (const Sides side : {Sides::rows, Sides::columns}) {
        const at::Tensor& x = side == Sides::rows ? other_rows : other_columns;
        const Operands left = quantize(x, of_x, Sides::rows, scale_for(x, of_x));
        EXPECT_TRUE(same_bits(multiply(left.rows, stored_operand(planes, extent, encoding, side, bf16(), amax).operand),
                              multiply(left.rows, weight_operand(w, format, side, scale_for(w, encoding)))))
            << name_of(format) << " " << rows << " x " << cols;
      }
    }
  }
}

TEST(OperandOfTiles, FitsOnlyTheSideAlongWhichTilesExtend) {
  const at::Tensor values = at::zeros({32, 32}, at::kBFloat16);
  EXPECT_THAT([&] { decoded_weight(values, weight_encoding(Format::mxfp8), Sides::columns, {}); },
              ThrowsMessage<Error>(HasSubstr("tiles of 1 x 32")));
  EXPECT_THAT([&] { decoded_weight(values, columnwise_encoding(Format::mxfp8), Sides::rows, {}); },
              ThrowsMessage<Error>(HasSubstr("tiles of 32 x 1")));
  EXPECT_THAT(
      [&] {
        borrowed_weight({}, {32, 32}, weight_encoding(Format::nvfp4), at::kCPU);
      },
      ThrowsMessage<Error>(HasSubstr("expected squares")));
}

TEST_P(OperandTest, StoredColumnsEqualTheColumnsOfABf16Weight) {
  const Encoding encoding = columnwise_encoding(Format::mxfp8);
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{80, 288}, {130, 33}, {16, 16}}) {
    const at::Tensor w = uneven({rows, cols}, 5, bf16()), x = uneven({48, rows}, 7, bf16()), host = w.cpu();
    const Extent extent{rows, cols};
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(extent.elements()));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_extent(encoding, extent).elements()));
    const quant::Quantized planes{codes.data(), scales.data(), nullptr};
    quantize({host.const_data_ptr(), quant::DType::bf16}, extent, encoding, planes);
    const Operand left = quantize(x, input_encoding(Format::mxfp8), Sides::rows, {}).rows;
    EXPECT_TRUE(same_bits(multiply(left, stored_operand(planes, extent, encoding, Sides::columns, bf16(), {}).operand),
                          multiply(left, weight_operand(w, Format::mxfp8, Sides::columns, {}))))
        << rows << " x " << cols;
  }
}

TEST_P(OperandTest, TransferredCodesGiveTheSameProducts) {
  for (const quant::Element element : {quant::Element::e4m3, quant::Element::e5m2}) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{37, 50}, {48, 64}}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols);
      const Encoding encoding{.element = element};
      const at::Tensor x = uneven({rows, cols}, 1, bf16()), w = uneven({cols, rows}, 2, bf16());
      const WholeScale scale = scale_for(x, encoding);
      const Operands whole = quantize(x, encoding, Sides::both, scale);
      at::Tensor parts = at::cat(
          {fp8_codes(x.narrow(0, 0, 20), encoding, scale), fp8_codes(x.narrow(0, 20, rows - 20), encoding, scale)});
      const Operands joined = operands_of_codes(parts, encoding, Sides::both, scale);
      // The codes are freed before the product. The allocator reuses their memory for the next tensor of this size.
      const at::TensorOptions bytes = parts.options();
      parts.reset();
      const at::Tensor others = at::full({rows, cols}, 0x7F, bytes);
      const Operand by_rows = quantize(w.t().contiguous(), {}, Sides::rows, scale_for(w, {})).rows;
      EXPECT_TRUE(same_bits(multiply(whole.rows, by_rows), multiply(joined.rows, by_rows)));
      const Operand by_columns = quantize(w, {}, Sides::rows, scale_for(w, {})).rows;
      EXPECT_TRUE(same_bits(multiply(whole.columns, by_columns), multiply(joined.columns, by_columns)));
    }
  }
}

// Returns every byte of an operand, including padding.
void expect_same_operand(const Operand& got, const Operand& expected) {
  EXPECT_EQ(got.defined(), expected.defined());
  EXPECT_EQ(got.extent, expected.extent);
  EXPECT_EQ(got.encoding, expected.encoding);
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() == b.defined() && (!a.defined() || same_bits(a, b));
  };
  EXPECT_TRUE(same(got.values, expected.values));
  EXPECT_TRUE(same(got.codes, expected.codes));
  EXPECT_TRUE(same(got.scales, expected.scales));
}
void expect_same_operands(const Operands& got, const Operands& expected) {
  for (const auto side : {&Operands::rows, &Operands::columns})
    if ((expected.*side).defined()) expect_same_operand(got.*side, expected.*side);
}

struct SwigluExtent {
  std::int64_t tokens, features;
};
constexpr SwigluExtent kSwiglus[] = {{1, 16},  {40, 5},   {128, 128}, {129, 144}, {300, 272},
                                     {16, 24}, {257, 40}, {0, 16},    {130, 1},   {256, 1024}};

// Uses a known scale, as delayed scaling does, so that some numbers saturate, with E4M3 and E5M2. Some gates exceed the
// range of ordinary_exponential.
class SwigluOperands : public OperandTest {
 protected:
  WholeScale known(float multiplier) const {
    const at::TensorOptions one = bf16().dtype(at::kFloat);
    return {.multiplier = at::full({1}, multiplier, one), .inverse = at::full({1}, 1 / multiplier, one), .amax = {}};
  }
  at::Tensor amax_place() const { return at::full({1}, 0.25F, bf16().dtype(at::kFloat)); }
  at::Tensor gate_up(const SwigluExtent& e, std::uint64_t seed) const {
    return random_tensor({e.tokens, 2 * e.features}, seed, at::TensorOptions(at::kFloat), 9.0)
        .pow(3)
        .mul(0.2)
        .to(bf16());
  }
  Quantization as(quant::Element element, Sides sides, float multiplier, const at::Tensor& amax) const {
    return {.encoding = {.element = element},
            .sides = sides,
            .whole = known(multiplier),
            .amax = amax.defined() ? static_cast<float*>(amax.mutable_data_ptr()) : nullptr};
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, SwigluOperands, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "Cpu" : "Cuda"; });

TEST_P(SwigluOperands, OfForwardEqualTwoSteps) {
  for (const SwigluExtent& e : kSwiglus)
    for (const quant::Element element : {quant::Element::e4m3, quant::Element::e5m2})
      for (const Sides sides : {Sides::rows, Sides::columns, Sides::both}) {
        SCOPED_TRACE(testing::Message() << e.tokens << " x " << e.features);
        const at::Tensor input = gate_up(e, 1), amax = amax_place(), expected_amax = amax_place();
        const Operands got = swiglu_operands(input, as(element, sides, 3.7F, amax));
        expect_same_operands(got, quantize(swiglu_forward(input), as(element, sides, 3.7F, expected_amax)));
        EXPECT_TRUE(same_bits(amax, expected_amax));
      }
}

TEST_P(SwigluOperands, OfBackwardEqualTwoSteps) {
  for (const SwigluExtent& e : kSwiglus)
    for (const quant::Element element : {quant::Element::e4m3, quant::Element::e5m2})
      for (const Sides sides : {Sides::rows, Sides::columns, Sides::both}) {
        SCOPED_TRACE(testing::Message() << e.tokens << " x " << e.features);
        const at::Tensor input = gate_up(e, 1), dout = random_tensor({e.tokens, e.features}, 2, bf16());
        const at::Tensor amax = amax_place(), again_amax = amax_place(), expected_amax = amax_place();
        const Quantization out = as(quant::Element::e4m3, Sides::columns, 0.9F, {});
        const SwigluBackward expected = swiglu_backward_with_output(dout, input);
        const Operands gradient = quantize(expected.gradient, as(element, sides, 41.0F, expected_amax));
        const ops::SwigluOperands got = swiglu_backward_operands(dout, input, as(element, sides, 41.0F, amax));
        expect_same_operands(got.gradient, gradient);
        EXPECT_FALSE(got.out.defined());
        const ops::SwigluOperands again =
            swiglu_backward_operands(dout, input, as(element, sides, 41.0F, again_amax), &out);
        expect_same_operands(again.gradient, gradient);
        expect_same_operand(again.out, quantize(expected.out, out).columns);
        EXPECT_TRUE(same_bits(amax, expected_amax) && same_bits(again_amax, expected_amax));
      }
}

// The rows do not begin at multiples of 16 bytes.
TEST_P(SwigluOperands, OfUnalignedMemoryAreTheSame) {
  const SwigluExtent e{70, 144};
  const at::Tensor input = gate_up(e, 3), dout = random_tensor({e.tokens, e.features}, 4, bf16());
  const Quantization scaled = as(quant::Element::e5m2, Sides::both, 2.0F, {});
  expect_same_operands(swiglu_operands(shifted(input, 1), scaled), swiglu_operands(input, scaled));
  expect_same_operands(swiglu_backward_operands(shifted(dout, 3), shifted(input, 1), scaled).gradient,
                       swiglu_backward_operands(dout, input, scaled).gradient);
}

TEST_P(OperandTest, AmaxesIgnoreNaNs) {
  at::Tensor x = uneven({5, 40}, 1, bf16());
  const float greatest = x.abs().max().item<float>();
  x[2][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(greatest, amax_of(x).item<float>());
  at::Tensor place = at::full({2}, 0.25F, bf16().dtype(at::kFloat));
  quantize(x, {}, Sides::rows, whole_scale({}, amax_of(x)), static_cast<float*>(place.mutable_data_ptr()) + 1);
  EXPECT_EQ(0.25F, place[0].item<float>());
  EXPECT_EQ(greatest, place[1].item<float>());
  EXPECT_EQ(448.0F / greatest, whole_scale({}, amax_of(x)).multiplier.item<float>());
}

TEST_P(OperandTest, QuantizationNeedsTheNumbersOfTheWholeMatrix) {
  const at::Tensor x = uneven({20, 48}, 1, bf16());
  const WholeScale whole = whole_scale(quant::input_encoding(quant::Format::fp8), amax_of(x));
  for (const quant::Format format : {quant::Format::fp8, quant::Format::nvfp4}) {
    const quant::Encoding encoding = quant::input_encoding(format);
    const WholeScale own = whole_scale(encoding, amax_of(x));
    EXPECT_NO_THROW(quantize(x, encoding, Sides::both, own));
    EXPECT_THROW(quantize(x, encoding, Sides::rows, {}), Error) << name_of(format);
    EXPECT_THROW(quantize(x, {.encoding = encoding, .sides = Sides::both, .whole = {own, {}}}), Error);
    EXPECT_NO_THROW(quantize(x, {.encoding = encoding, .sides = Sides::rows, .whole = {own, {}}}));
  }
  EXPECT_THROW(quantize(x, quant::input_encoding(quant::Format::nvfp4), Sides::rows, whole), Error);
  for (const quant::Format format : {quant::Format::fp8_block, quant::Format::mxfp8})
    EXPECT_NO_THROW(quantize(x, quant::input_encoding(format), Sides::both, {})) << name_of(format);
}

// Expects every element in row `row` of a product to be not finite.
void expect_shown(const Operand& operand, const Operand& other, std::int64_t row) {
  const at::Tensor product = multiply(operand, other);
  EXPECT_FALSE(product[row].isfinite().any().item<bool>());
  at::Tensor added = at::zeros({operand.extent.rows, other.extent.rows}, product.options().dtype(at::kFloat));
  multiply_into(operand, other, added, /*accumulate=*/true);
  EXPECT_FALSE(added[row].isfinite().any().item<bool>());
}

// Saturation would hide the element. It must be visible in both products of inputs and of gradients, and in those of
// weights.
TEST_P(OperandTest, ANonFiniteElementIsVisibleInItsProducts) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Format format : formats())
    for (const float special : {infinity, -infinity, nan})
      for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{20, 41}, {144, 272}, {256, 128}}) {
        SCOPED_TRACE(testing::Message() << name_of(format) << " " << special << " " << rows << " x " << cols);
        at::Tensor x = uneven({rows, cols}, 1, bf16());
        const std::int64_t row = rows - 3, col = cols - 6;
        x[row][col] = special;
        const auto other_of = [&](std::int64_t inner) {
          const at::Tensor w = uneven({8, inner}, 2, bf16());
          return quantize(w, input_encoding(format), Sides::rows, scale_for(w, input_encoding(format))).rows;
        };
        for (const Encoding& encoding : {input_encoding(format), gradient_encoding(format, Fp8Recipe::hybrid)}) {
          const Operands operands = quantize(x, encoding, Sides::both, scale_for(x, encoding));
          expect_shown(operands.rows, other_of(cols), row);
          expect_shown(operands.columns, other_of(rows), col);
        }
        const WholeScale of_weight = scale_for(x, weight_encoding(format));
        expect_shown(weight_operand(x, format, Sides::rows, of_weight), other_of(cols), row);
        expect_shown(weight_operand(x, format, Sides::columns, of_weight), other_of(rows), col);
      }
}

// If the scale is known in advance, the amax shows an infinity that the codes hide.
TEST_P(OperandTest, AnInfiniteElementWithAKnownScaleIsVisibleInTheAmax) {
  at::Tensor x = uneven({20, 40}, 1, bf16());
  const WholeScale known = whole_scale({}, amax_of(x));
  x[2][3] = -std::numeric_limits<float>::infinity();
  const at::Tensor amaxes = at::zeros({2}, bf16().dtype(at::kFloat));
  auto* place = static_cast<float*>(amaxes.mutable_data_ptr());
  quantize(x, {}, Sides::both, known, place);
  fp8_codes(x, {}, known, place + 1);
  EXPECT_TRUE(amaxes.isinf().all().item<bool>());
}

TEST_P(OperandTest, MismatchedOperandsAreRejected) {
  const at::Tensor x = uneven({20, 40}, 1, bf16()), w = uneven({8, 48}, 2, bf16());
  const Operands left = quantize(x, {}, Sides::rows, scale_for(x, {}));
  const Operands right = quantize(w, {}, Sides::rows, scale_for(w, {}));
  EXPECT_THAT([&] { multiply(left.rows, right.rows); },
              ThrowsMessage<Error>(HasSubstr("rows have 40 and 48 elements")));
  EXPECT_THAT([&] { multiply(left.rows, left.columns); }, ThrowsMessage<Error>(HasSubstr("undefined")));
  EXPECT_THAT([&] { amax_of(x.to(at::kFloat)); }, ThrowsMessage<Error>(HasSubstr("bf16")));
  const Operand decoded = quantize(x, input_encoding(Format::mxfp8), Sides::rows, {}).rows;
  EXPECT_THAT([&] { multiply(left.rows, decoded); }, ThrowsMessage<Error>(HasSubstr("only one of them is decoded")));
  EXPECT_THAT([&] { quantize(x, input_encoding(Format::nvfp4), Sides::rows, {}); },
              ThrowsMessage<Error>(HasSubstr("amax of the whole matrix")));
}

}  // namespace
}  // namespace tessera::ops::test
