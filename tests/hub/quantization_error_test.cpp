// Compares the quantization error of a matrix with numbers from the definitions of the formats.
#include "tessera/hub/inspect/quantization_error.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <span>

#include "tessera/checkpoint/reader.h"
#include "tessera/hub/stored_rows.h"
#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {

using quant::Format;

std::vector<quant::bfloat16> matrix_of(const std::vector<float>& values) {
  std::vector<quant::bfloat16> result;
  for (const float value : values) result.emplace_back(value);
  return result;
}

TEST(QuantizationErrors, AreZeroForNumbersOfTheFormat) {
  const std::vector<quant::bfloat16> values = matrix_of({448, -1, 0, 0.5F, 2, -240, 1.125F, 0.25F});
  for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8}) {
    const QuantizationError error = quantization_error(values, {2, 4}, format);
    EXPECT_EQ(error.relative_rms, 0) << name_of(format);
    EXPECT_EQ(error.max_error, 0);
    EXPECT_EQ(error.saturated + error.underflowed + error.not_finite, 0);
  }
}

// 448 gives the scale 1. 1.0625 is halfway between 1 and 1.125 and is rounded to 1, the even one; 2^-11 is below half
// of the least element, 2^-9.
TEST(QuantizationErrors, CountDifferencesAndUnderflows) {
  const std::vector<quant::bfloat16> values = matrix_of({448, 1.0625F, 0x1p-11F, 0});
  for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8}) {
    const QuantizationError error = quantization_error(values, {1, 4}, format);
    const double squares = 448.0 * 448 + 1.0625 * 1.0625 + 0x1p-22;
    EXPECT_DOUBLE_EQ(error.relative_rms, std::sqrt((0.0625 * 0.0625 + 0x1p-22) / squares));
    EXPECT_DOUBLE_EQ(error.max_error, 0.0625 / 448);
    EXPECT_EQ(error.underflowed, 1);
    EXPECT_EQ(error.saturated, 0);
  }
}

// Two tiles of nvfp4. With the amax 2688 the multiplier of the whole matrix is 1. The exact scale of the second tile is
// 3.0625 / 6 = 0.5104; its nearest E4M3 number is 0.5, so the greatest number of the tile is 3.
TEST(QuantizationErrors, CountElementsBeyondTheGreatestOfATile) {
  std::vector<float> values(32, 0.0F);
  values[0] = 2688, values[16] = 3.0625F;
  const QuantizationError error = quantization_error(matrix_of(values), {1, 32}, Format::nvfp4);
  EXPECT_EQ(error.saturated, 1);
  EXPECT_DOUBLE_EQ(error.max_error, 0.0625 / 2688);
  EXPECT_EQ(error.underflowed, 0);
}

TEST(QuantizationErrors, IgnoreElementsThatAreNotFinite) {
  const std::vector<quant::bfloat16> values = matrix_of({1, NAN, INFINITY, -0.5F});
  const QuantizationError error = quantization_error(values, {1, 4}, Format::fp8);  // an infinite amax: the scale is 1
  EXPECT_EQ(error.not_finite, 2);
  EXPECT_EQ(error.relative_rms, 0);
  EXPECT_EQ(quantization_error({}, {0, 4}, Format::mxfp8).relative_rms, 0);
  EXPECT_EQ(quantization_error(matrix_of({0, 0}), {1, 2}, Format::nvfp4).max_error, 0);
}

// Each expert is a matrix of its own: a large expert does not change the scales of a small one.
TEST(QuantizationErrors, OfExpertsAreThoseOfEachExpertAlone) {
  const TemporaryFolder root;
  const models::ModelConfigPtr model = testing::odd_decoder("mixtral", false);
  testing::write_model(root / "c", *model, quant::DType::fp32);
  const checkpoint::CheckpointReader reader(root / "c");
  const checkpoint::StoredTensor& weight = reader.tensor("layers.0.experts.gate_up.weight", checkpoint::Kind::weight);
  ASSERT_EQ(weight.dims.size(), 3u);
  const quant::Extent matrix{weight.dims[1], weight.dims[2]};
  std::vector<quant::bfloat16> values;
  read_rows(reader, weight, {.rows = weight.dims[0] * matrix.rows, .cols = matrix.cols}, quant::DType::bf16,
            [&](const std::byte* data, std::int64_t elements) {
              const auto* first = reinterpret_cast<const quant::bfloat16*>(data);
              values.insert(values.end(), first, first + elements);
            });
  const nlohmann::json found = quantization_errors(reader, weight, std::array{Format::fp8})["fp8"];
  double sum = 0, worst = -1, greatest = 0;
  std::int64_t which = 0;
  for (std::int64_t expert = 0; expert < weight.dims[0]; ++expert) {
    const std::span own = std::span(values).subspan(static_cast<std::size_t>(expert * matrix.elements()),
                                                    static_cast<std::size_t>(matrix.elements()));
    const QuantizationError error = quantization_error(own, matrix, Format::fp8);
    sum += error.relative_rms;
    greatest = std::max(greatest, error.max_error);
    if (error.relative_rms > worst) which = expert, worst = error.relative_rms;
  }
  EXPECT_NEAR(found["relative_rms"].get<double>(), sum / static_cast<double>(weight.dims[0]), 1e-12);
  EXPECT_EQ(found["max_error"].get<double>(), greatest);
  EXPECT_EQ(found["worst"], nlohmann::json({{"matrix", which}, {"relative_rms", worst}}));
}

TEST(QuantizationErrors, OfAnUnknownFormatAreRefused) {
  EXPECT_EQ(parse_error_formats({"nvfp4", "fp8", "nvfp4"}), (std::vector{Format::nvfp4, Format::fp8}));
  EXPECT_EQ(parse_error_formats({"fp8", "all"}).size(), 4u);
  EXPECT_TRUE(parse_error_formats({}).empty());
  for (const char* word : {"bf16", "fp9", ""})
    EXPECT_EQ(testing::input_error([&] { parse_error_formats({word}); }),
              fmt::format("--quantization-error: got '{}', expected all, fp8, fp8_block, mxfp8 or nvfp4", word));
}

}  // namespace
}  // namespace tessera::hub
