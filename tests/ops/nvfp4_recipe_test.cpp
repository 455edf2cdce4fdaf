// Tests operands of nvfp4 products with the transform of columns and with stochastic rounding, on a CPU and on a GPU:
// their amaxes, values and codes equal those that quant/ defines, and the bytes of a dry run are theirs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/work.h"
#include "tessera/quant/formats/decoded.h"
#include "tessera/quant/formats/hadamard.h"
#include "tests/ops/values.h"

namespace tessera::ops::test::recipe {
namespace {

using quant::Encoding, quant::Extent, quant::Format;

constexpr Extent kRecipeExtents[] = {{1, 2}, {2, 1}, {16, 16}, {17, 33}, {31, 15}, {33, 300}, {241, 48}, {300, 4112}};

const Encoding kRows = quant::input_encoding(Format::nvfp4);

const quant::bfloat16* data_of_bf16(const at::Tensor& matrix) {
  return static_cast<const quant::bfloat16*>(matrix.const_data_ptr());
}
Extent extent_of_matrix(const at::Tensor& matrix) {
  return {.rows = matrix.size(0), .cols = matrix.size(1)};
}

// Returns values of different magnitudes. Special values are a NaN, infinities and subnormal numbers, and zeros.
at::Tensor source_matrix(Extent extent, bool special) {
  at::Tensor values = random_tensor({extent.rows, extent.cols}, 3, at::TensorOptions(at::kFloat));
  auto* element = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < values.numel(); ++i) element[i] *= std::ldexp(1.0F, static_cast<int>(i % 11) - 5);
  if (special) {
    const float numbers[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0x1p-133F,
                             1e30F, -std::numeric_limits<float>::infinity()};
    for (std::int64_t i = 0; i < 5; ++i) element[i * 977 % values.numel()] = numbers[i];
    values.select(0, extent.rows / 2).zero_();
  }
  return values.to(at::kBFloat16);
}

at::Tensor transformed(const at::Tensor& matrix) {
  const Extent wide = quant::transformed_extent(extent_of_matrix(matrix));
  at::Tensor result = at::empty({wide.rows, wide.cols}, at::kBFloat16);
  transform_columns(data_of_bf16(matrix), extent_of_matrix(matrix),
                    static_cast<quant::bfloat16*>(result.mutable_data_ptr()));
  return result;
}

// Returns the decoded values of one side, as quant/ defines them.
at::Tensor expected_values(const at::Tensor& source, const Encoding& encoding,
                           const quant::StochasticRounding& rounding) {
  at::Tensor values = at::empty(source.sizes(), at::kBFloat16);
  decode_operand({.values = data_of_bf16(source),
                  .matrix = extent_of_matrix(source),
                  .encoding = encoding,
                  .whole = amax_of(source).item<float>(),
                  .rounding = rounding},
                 static_cast<quant::bfloat16*>(values.mutable_data_ptr()));
  return values;
}

// Returns the values of an operand in the order of its matrix.
at::Tensor values_in_order(const Operand& operand, Sides side) {
  at::Tensor values = operand.values.cpu();
  if (side == Sides::columns && !operand.is_transposed) values = values.t();
  return values.contiguous();
}

class Nvfp4Recipe : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !has_cuda()) GTEST_SKIP() << "no CUDA device";
    step_ = at::empty({1}, at::kLong).fill_(kStep).to(GetParam());
  }
  bool on_gpu() const { return GetParam() == at::kCUDA; }
  quant::StochasticRounding rounding() const {
    return {.key = quant::rounding_key({.seed = 4, .parameter = base::name_hash("w")}),
            .step = step_.const_data_ptr<std::int64_t>(),
            .first_token = 1234};
  }
  static quant::StochasticRounding on_host(quant::StochasticRounding rounding) {
    static constexpr std::int64_t step = kStep;
    if (rounding.step != nullptr) rounding.step = &step;
    return rounding;
  }
  static Quantization quantization(const at::Tensor& matrix, Sides sides, bool transform,
                                   const quant::StochasticRounding& rounding) {
    return {.encoding = kRows,
            .sides = sides,
            .whole = whole_scales(kRows, amaxes_of(matrix, sides, transform)),
            .transform = transform,
            .rounding = rounding};
  }

  static constexpr std::int64_t kStep = 7;
  at::Tensor step_;
};
INSTANTIATE_TEST_SUITE_P(Devices, Nvfp4Recipe, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "Cpu" : "Cuda"; });

TEST_P(Nvfp4Recipe, AmaxesAreThoseOfTheRowsAndOfTheTransformedColumns) {
  for (const Extent& extent : kRecipeExtents)
    for (const bool special : {false, true}) {
      const at::Tensor host = source_matrix(extent, special), matrix = host.to(GetParam());
      const float rows = amax_of(host).item<float>(), columns = amax_of(transformed(host)).item<float>();
      const auto amaxes = [&](Sides sides, bool transform) { return values_of(amaxes_of(matrix, sides, transform)); };
      for (const Sides sides : {Sides::both, Sides::kept}) EXPECT_EQ(amaxes(sides, true), (Values{rows, columns}));
      EXPECT_EQ(amaxes(Sides::rows, true), (Values{rows}));
      EXPECT_EQ(amaxes(Sides::columns, true), (Values{columns}));
      EXPECT_EQ(amaxes(Sides::both, false), (Values{rows}));
    }
}

// Bytes of a NaN count too: every decoded NaN has the same bits.
TEST_P(Nvfp4Recipe, OperandsHaveTheValuesOfTheDefinition) {
  for (const Extent& extent : kRecipeExtents)
    for (const bool special : {false, true})
      for (const bool transform : {false, true})
        for (const quant::StochasticRounding& rounding : {quant::StochasticRounding{}, this->rounding()}) {
          SCOPED_TRACE(testing::Message() << extent.rows << " x " << extent.cols << " special " << special
                                          << " transform " << transform << " random " << (rounding.step != nullptr));
          const at::Tensor host = source_matrix(extent, special), matrix = host.to(GetParam());
          const Operands operands = quantize(matrix, quantization(matrix, Sides::both, transform, rounding));
          const at::Tensor columns = transform ? transformed(host) : host;
          EXPECT_EQ(operands.columns.extent, (Extent{.rows = columns.size(1), .cols = columns.size(0)}));
          const auto expect_values = [&](const Operand& operand, Sides side, const at::Tensor& expected) {
            // A CPU widens the values to fp32.
            const at::ScalarType type = on_gpu() ? at::kBFloat16 : at::kFloat;
            EXPECT_TRUE(same_bits(values_in_order(operand, side), expected.to(type)));
          };
          expect_values(operands.rows, Sides::rows, expected_values(host, kRows, on_host(rounding)));
          expect_values(operands.columns, Sides::columns,
                        expected_values(columns, quant::by_columns(kRows), on_host(rounding)));
        }
}

TEST_P(Nvfp4Recipe, KeptColumnsGiveTheBitsOfTheProduct) {
  for (const Extent& extent : {Extent{1, 2}, Extent{33, 18}, Extent{64, 31}, Extent{100, 48}}) {
    const at::Tensor x = source_matrix(extent, false).to(GetParam()),
                     dy = source_matrix({extent.rows, 24}, false).to(GetParam());
    const Operand gradient = quantize(dy, quantization(dy, Sides::columns, true, rounding())).columns;
    const Operands both = quantize(x, quantization(x, Sides::both, true, {})),
                   kept = quantize(x, quantization(x, Sides::kept, true, {}));
    EXPECT_EQ(kept.columns.extent, both.columns.extent);
    EXPECT_EQ(kept.columns.values.defined(), !on_gpu());
    EXPECT_TRUE(same_bits(kept.rows.values, both.rows.values));
    EXPECT_TRUE(same_bits(multiply(gradient, decode(kept.columns)), multiply(gradient, both.columns)));
    if (on_gpu())
      EXPECT_EQ(static_cast<std::int64_t>(kept.columns.codes.nbytes() + kept.columns.scales.nbytes()),
                stored_bytes(kept.columns.extent, kept.columns.encoding));
  }
}

// The transform does not change the product over tokens. Here it only changes how the operands are rounded: by at most
// 1/6 of the largest magnitude of a tile, and of the scale by 1/16.
TEST_P(Nvfp4Recipe, WgradWithTheTransformIsNearTheExactProduct) {
  const at::Tensor x = source_matrix({100, 40}, false), dy = source_matrix({100, 24}, false);
  const Values exact = values_of(dy.to(at::kDouble).t().matmul(x.to(at::kDouble)));
  const double magnitude = dy.to(at::kDouble).norm().item<double>() * x.to(at::kDouble).norm().item<double>();
  for (const bool transform : {false, true}) {
    const at::Tensor left = dy.to(GetParam()), right = x.to(GetParam());
    at::Tensor dw = at::empty({24, 40}, left.options().dtype(at::kFloat));
    multiply_into(quantize(left, quantization(left, Sides::columns, transform, {})).columns,
                  quantize(right, quantization(right, Sides::columns, transform, {})).columns, dw,
                  /*accumulate=*/false);
    expect_near(values_of(dw), exact, [&](std::size_t) { return 0.25 * magnitude; });
    const at::Tensor errors = dw.cpu().to(at::kDouble) - tensor_of(exact, {24, 40}, at::kDouble);
    EXPECT_LT(errors.norm().item<double>(), 0.25 * tensor_of(exact, {24, 40}, at::kDouble).norm().item<double>());
  }
}

// A value that is not finite reaches the product of its column.
TEST_P(Nvfp4Recipe, ProductsOfValuesThatAreNotFiniteAreNotFinite) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const bool transform : {false, true}) {
      at::Tensor dy = source_matrix({40, 24}, false), x = source_matrix({40, 16}, false);
      dy.select(0, 37).select(0, 5).fill_(value);
      dy = dy.to(GetParam()), x = x.to(GetParam());
      const Operands gradient = quantize(dy, quantization(dy, Sides::both, transform, rounding()));
      at::Tensor dw = at::empty({24, 16}, dy.options().dtype(at::kFloat));
      multiply_into(gradient.columns, quantize(x, quantization(x, Sides::columns, transform, {})).columns, dw, false);
      EXPECT_FALSE(dw.select(0, 5).isfinite().any().item<bool>());
      const at::Tensor w = source_matrix({24, 16}, false).to(GetParam());
      const WholeScale of_w = whole_scale(weight_encoding(Format::nvfp4), amax_of(w));
      const at::Tensor dx = multiply(gradient.rows, weight_operand(w, Format::nvfp4, Sides::columns, of_w));
      EXPECT_FALSE(dx.select(0, 37).isfinite().any().item<bool>());
    }
}

TEST_P(Nvfp4Recipe, IsRefusedForOtherFormatsAndWeights) {
  const at::Tensor matrix = source_matrix({32, 32}, false).to(GetParam());
  const WholeScale scale = whole_scale(kRows, amax_of(matrix));
  for (const Encoding& encoding : {quant::input_encoding(Format::mxfp8), quant::weight_encoding(Format::nvfp4)}) {
    EXPECT_THROW(quantize(matrix, {.encoding = encoding, .whole = scale, .transform = true}), Error);
    EXPECT_THROW(quantize(matrix, {.encoding = encoding, .whole = scale, .rounding = rounding()}), Error);
  }
  EXPECT_THROW(
      quantize(matrix, {.encoding = quant::weight_encoding(Format::nvfp4), .sides = Sides::kept, .whole = scale}),
      Error);
}

// One pass computes both amaxes: it reads 2 bytes an element. Transformed columns have 16 n tokens.
TEST(Nvfp4RecipeOfADryRun, ReportsTheBytesOfTransformedColumns) {
  std::vector<Work> works;
  const WorkScope scope([&](const Work& work) { works.push_back(work); });
  const at::Tensor x = at::empty({33, 96}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
  const Quantization as{.encoding = kRows,
                        .sides = Sides::kept,
                        .whole = whole_scales(kRows, amaxes_of(x, Sides::kept, true)),
                        .transform = true};
  const Operand columns = decode(quantize(x, as).columns);
  EXPECT_EQ(columns.extent, (Extent{.rows = 96, .cols = 48}));
  std::vector<double> bytes;
  for (const Work& work : works) bytes.push_back(work.bytes);
  EXPECT_THAT(bytes, testing::ElementsAre(33 * 96 * 2.0, 33 * 96 * 4.0 + 48 * 96 * 0.5625, 48 * 96 * 2.5625));
}

}  // namespace
}  // namespace tessera::ops::test::recipe
