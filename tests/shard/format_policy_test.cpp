// Tests the choice of number formats, and its effect on parameters.
#include "tessera/shard/formats/format_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/shard/make_parameter.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/sizes.h"

namespace tessera::shard {
namespace {

using quant::Format;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr ParameterTypes kHalf{.model = quant::DType::bf16};

ParameterSpec matrix_of(std::string name, std::int64_t rows, std::int64_t cols, int tp = 1) {
  return {.name = std::move(name), .dims = {rows, cols}, .compute = layout::cut_cols({rows, cols}, tp)};
}

std::optional<quant::Encoding> encoding_of(ParameterSpec spec, const FormatPolicy& policy) {
  set_encoding(spec, policy, kHalf);
  return spec.encoding;
}

TEST(FormatPolicies, TheLastMatchingRuleDecides) {
  const FormatPolicy policy{.format = Format::mxfp8,
                            .rules = parse_format_rules("a.*=nvfp4,*.up=bf16,a.1.up=fp8_block", "--wire-rules")};
  EXPECT_EQ(encoding_of(matrix_of("b.down", 8, 8), policy), quant::weight_encoding(Format::mxfp8));
  EXPECT_EQ(encoding_of(matrix_of("a.0.down", 8, 8), policy), quant::weight_encoding(Format::nvfp4));
  EXPECT_EQ(encoding_of(matrix_of("a.0.up", 8, 8), policy), std::nullopt);
  EXPECT_EQ(encoding_of(matrix_of("a.1.up", 8, 8), policy), quant::weight_encoding(Format::fp8_block));
  EXPECT_FALSE(policy.is_bf16());
  EXPECT_TRUE((FormatPolicy{.rules = parse_format_rules("a=bf16", "")}.is_bf16()));
}

TEST(FormatPolicies, DoNotChangeVectorsAndTables) {
  const FormatPolicy policy{.format = Format::fp8};
  ParameterSpec vector{.name = "norm", .dims = {8}, .compute = layout::replicated({1, 8}, 1)};
  EXPECT_EQ(encoding_of(vector, policy), std::nullopt);
  vector.sharded = false;
  EXPECT_EQ(encoding_of(vector, policy), std::nullopt);
  ParameterSpec table = matrix_of("table", 64, 8);
  table.reads.per_microbatch = 4;
  EXPECT_EQ(encoding_of(table, policy), std::nullopt);
  EXPECT_EQ(encoding_of(table, {.rules = {{"table", Format::bf16}}}), std::nullopt);
  EXPECT_THAT(
      [&] {
        encoding_of(table, {.rules = {{"ta*", Format::fp8}}});
      },
      ThrowsMessage<InputError>(HasSubstr("rule ta*=fp8: the rows of 'table' are read by index")));
}

TEST(FormatPolicies, DoNotChangeParametersThatTakeNoFormats) {
  ParameterSpec experts = matrix_of("experts", 8, 8);
  experts.takes_formats = false;
  const FormatPolicy all{.format = Format::fp8}, rule{.rules = {{"exp*", Format::mxfp8}}};
  set_encoding(experts, all, kHalf);
  set_product(experts, all, kHalf);
  set_backward(experts, all, kHalf);
  EXPECT_FALSE(experts.encoding || experts.backward);
  EXPECT_EQ(experts.product, Format::bf16);
  for (const auto set : {set_encoding, set_product, set_backward}) {
    EXPECT_NO_THROW(set(experts, {.rules = {{"exp*", Format::bf16}}}, kHalf));
    EXPECT_THAT([&] { set(experts, rule, kHalf); },
                ThrowsMessage<InputError>(HasSubstr("rule exp*=mxfp8: 'experts' has no number format")));
  }
}

ParameterSpec with_backward(ParameterSpec spec, Format forward, Format backward, Format product = Format::bf16) {
  set_encoding(spec, {.format = forward}, kHalf);
  set_product(spec, {.format = product}, kHalf);
  set_backward(spec, {.format = backward}, kHalf);
  return spec;
}

TEST(FormatPolicies, BackwardPassesReadAnotherWeightIfTheirFormatDiffers) {
  const ParameterSpec matrix = matrix_of("m", 96, 64);
  for (const Format format : {Format::bf16, Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
    EXPECT_FALSE(with_backward(matrix, format, format).backward) << name_of(format);
    EXPECT_EQ(with_backward(matrix, format, format, format).backward.has_value(), format == Format::mxfp8);
  }
  const ParameterSpec unpacked = with_backward(matrix, Format::nvfp4, Format::mxfp8);
  EXPECT_EQ(unpacked.rows_together, 16);
  const ParameterSpec backward = backward_weight(unpacked);
  EXPECT_EQ(backward.name, "m (backward)");
  EXPECT_EQ(backward.encoding, quant::weight_encoding(Format::mxfp8));
  EXPECT_TRUE(backward.is_backward_weight && !backward.trainable && !backward.backward && is_unpacked(backward));
  EXPECT_EQ(backward_weight(with_backward(matrix, Format::mxfp8, Format::bf16)).encoding, std::nullopt);
}

TEST(FormatPolicies, ProductsOfMxfp8ReadTheColumnsOfABackwardWeight) {
  const ParameterSpec spec = with_backward(matrix_of("m", 96, 64), Format::mxfp8, Format::mxfp8, Format::mxfp8);
  const ParameterSpec backward = backward_weight(spec);
  EXPECT_EQ(unpacked_to(spec), Unpacked::decoded);
  EXPECT_EQ(unpacked_to(backward), Unpacked::decoded);
  EXPECT_EQ(backward.encoding->tile, (quant::ScaleTile{32, 1}));
  EXPECT_EQ(quant::format_of(*backward.encoding), Format::mxfp8);
  // Both weights have the same sharding, between tiles of the backward weight.
  const Cuts cuts{.parts = 2, .replicas = 2, .zero = true};
  EXPECT_EQ(layouts_of(spec).together, layouts_of(backward).together);
  EXPECT_EQ(layouts_of(spec).stored(0, cuts.parts).ranks[1].size % (32 * 64), 0);
  ParameterSpec looked_up = matrix_of("m", 96, 64);
  looked_up.looked_up = true;  // rows are read in bf16, so both passes unpack
  EXPECT_FALSE(with_backward(looked_up, Format::mxfp8, Format::mxfp8, Format::mxfp8).backward);
}

// Fp8 products read the codes. If the formats differ, products quantize the unpacked values.
TEST(FormatPolicies, ProductsReadTheContentOfTheirWeight) {
  const ParameterSpec matrix = matrix_of("m", 96, 64);
  constexpr Format kFormats[] = {Format::bf16, Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4};
  for (const Format wire : kFormats)
    for (const Format product : kFormats) {
      const ParameterSpec spec = with_backward(matrix, wire, wire, product);
      const bool is_decoded = product == Format::mxfp8 || product == Format::nvfp4;
      const Unpacked same = is_decoded ? Unpacked::decoded : Unpacked::nothing;
      const Unpacked expected = wire == Format::bf16 ? Unpacked::nothing : wire == product ? same : Unpacked::values;
      EXPECT_EQ(unpacked_to(spec), expected) << name_of(wire) << " " << name_of(product);
      EXPECT_EQ(is_quantized_at_use(spec), product != Format::bf16 && product != wire);
    }
  // The product of the forward pass or of the backward pass quantizes.
  EXPECT_TRUE(is_quantized_at_use(with_backward(matrix, Format::nvfp4, Format::bf16, Format::nvfp4)));
  EXPECT_TRUE(is_quantized_at_use(with_backward(matrix, Format::mxfp8, Format::nvfp4, Format::nvfp4)));
  ParameterSpec looked_up = matrix;
  looked_up.looked_up = true;
  EXPECT_TRUE(is_quantized_at_use(with_backward(looked_up, Format::nvfp4, Format::nvfp4, Format::nvfp4)));
}

TEST(FormatPolicies, RefuseAnUnsupportedBackwardFormat) {
  const ParameterSpec odd = matrix_of("odd", 8, 18, 2);  // 9 columns on each rank
  EXPECT_THAT([&] { with_backward(odd, Format::bf16, Format::nvfp4); },
              ThrowsMessage<InputError>(HasSubstr("'odd (backward)': 4-bit formats need an even number")));
  ParameterSpec table = matrix_of("table", 64, 8);
  table.reads.per_microbatch = 4;
  EXPECT_FALSE(with_backward(table, Format::bf16, Format::fp8).backward);
  EXPECT_THAT(
      [&] {
        set_backward(table, {.rules = {{"ta*", Format::fp8}}}, kHalf);
      },
      ThrowsMessage<InputError>(HasSubstr("rule ta*=fp8: the rows of 'table' are read by index")));
}

TEST(FormatPolicies, RefuseAMatrixThatAFormatCannotStore) {
  ParameterSpec odd = matrix_of("odd", 8, 18, 2);  // 9 columns on each rank
  EXPECT_THAT([&] { encoding_of(odd, {.format = Format::nvfp4}); },
              ThrowsMessage<InputError>(HasSubstr("'odd': 4-bit formats need an even number of columns")));
  ParameterSpec later = matrix_of("later", 8, 8, 3);  // 2, 3 and 3 columns
  EXPECT_THAT(
      [&] { encoding_of(later, {.format = Format::nvfp4}); },
      ThrowsMessage<InputError>(HasSubstr("'later': 4-bit formats need an even number of columns on each compute "
                                          "rank, got 3")));
  EXPECT_TRUE(encoding_of(odd, {.format = Format::mxfp8}));
  ParameterSpec wide = matrix_of("wide", 8, 8);
  EXPECT_THAT([&] { set_encoding(wide, {.format = Format::fp8}, {}); },
              ThrowsMessage<InputError>(HasSubstr("'wide': number formats need the type bf16, got fp32")));
}

TEST(FormatPolicies, RefuseInvalidRules) {
  const auto parse = [](const char* text) { return [text] { parse_format_rules(text, "--wire-rules"); }; };
  EXPECT_THAT(parse("a=fp8,b"), ThrowsMessage<InputError>(HasSubstr("--wire-rules: got 'b', expected PATTERN=FORMAT")));
  EXPECT_THAT(parse("=fp8"), ThrowsMessage<InputError>(HasSubstr("got '=fp8'")));
  EXPECT_THAT(parse("a=fp9"), ThrowsMessage<InputError>(HasSubstr("unknown number format 'fp9'")));
  EXPECT_TRUE(parse_format_rules("", "--wire-rules").empty());
  const std::vector<std::string> names{"a.up", "a.down"};
  EXPECT_NO_THROW(check_rules(parse_format_rules("a.*=fp8,*up=bf16", ""), names, "--wire-rules"));
  EXPECT_THAT([&] { check_rules(parse_format_rules("a.*=fp8,b=bf16", ""), names, "--wire-rules"); },
              ThrowsMessage<InputError>(HasSubstr(
                  "--wire-rules: got b=bf16, expected the name of a matrix with a number format: a.up, a.down")));
  const std::vector<std::string> layers{"layers.0.up", "layers.1.up", "layers.10.up2", "9"};
  EXPECT_THAT([&] { check_rules(parse_format_rules("b=bf16", ""), layers, "--wire-rules"); },
              ThrowsMessage<InputError>(HasSubstr("format: layers.*.up, layers.*.up2, *")));
}

double wire_bytes_per_element(Format format, std::int64_t rows, std::int64_t cols) {
  ParameterSpec spec = matrix_of("weight", rows, cols);
  set_encoding(spec, {.format = format}, kHalf);
  const Cuts cuts{.parts = 2};
  const schedule::ParameterSize size = parameter_size(spec, layouts_of(spec), kHalf, cuts);
  return static_cast<double>(total_bytes(size.gather)) / (static_cast<double>(rows * cols) / 2);
}

TEST(EncodedParameters, SendTheBytesOfTheirFormat) {
  EXPECT_EQ(wire_bytes_per_element(Format::bf16, 512, 1024), 2);
  EXPECT_EQ(wire_bytes_per_element(Format::fp8, 512, 1024), 1);
  EXPECT_EQ(wire_bytes_per_element(Format::fp8_block, 512, 1024), 1 + 4.0 / (128 * 128));
  EXPECT_EQ(wire_bytes_per_element(Format::mxfp8, 512, 1024), 1.03125);
  EXPECT_EQ(wire_bytes_per_element(Format::nvfp4, 512, 1024), 0.5 + 1.0 / 256);
}

TEST(EncodedParameters, AreUnpackedEvenIfNothingTravels) {
  ParameterSpec spec = matrix_of("weight", 48, 64);
  set_encoding(spec, {.format = Format::nvfp4}, kHalf);
  const schedule::ParameterSize size = parameter_size(spec, layouts_of(spec), kHalf, {});
  EXPECT_EQ(total_bytes(size.gather), 0);
  EXPECT_EQ(size.gathered, 0);
  EXPECT_EQ(size.unpacked, 48 * 64 * 2);
}

TEST(EncodedParameters, ArriveInThePlanesOfTheirFormat) {
  ParameterSpec spec = matrix_of("weight", 48, 64);
  set_encoding(spec, {.format = Format::nvfp4}, kHalf);
  const Cuts cuts{.parts = 3};
  const schedule::ParameterSize size = parameter_size(spec, layouts_of(spec), kHalf, cuts);
  EXPECT_EQ(size.gathered, 48 * 64 / 2 + 256);  // 12 scales, aligned
  EXPECT_EQ(size.unpacked, 48 * 64 * 2);
}

TEST(EncodedParameters, AreCutBetweenTiles) {
  ParameterSpec spec = matrix_of("weight", 40, 64);
  set_encoding(spec, {.format = Format::nvfp4}, kHalf);
  const std::vector<std::int64_t> rows{16, 16, 8, 0};
  for (int rank = 0; rank < 4; ++rank) {
    const ShardedParameter parameter = make_parameter(spec, kHalf, {.parts = 4}, {.part = rank});
    const std::int64_t own = rows[static_cast<std::size_t>(rank)];
    EXPECT_EQ(parameter.planes[0].data.size(), static_cast<std::size_t>(own * 32));
    EXPECT_EQ(parameter.planes[1].data.size(), static_cast<std::size_t>((own + 15) / 16 * 4));
    EXPECT_EQ(parameter.master.size(), static_cast<std::size_t>(own * 64 * 4));
    EXPECT_EQ(parameter.tensor_scale.size(), sizeof(float));
  }
}

}  // namespace
}  // namespace tessera::shard
