// Tests the shares of number formats, and the reasons of weights without one.
#include "tessera/shard/formats/format_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::shard::table {
namespace {

using quant::Format;
using ::testing::ElementsAre;

constexpr ParameterTypes kHalf{.model = quant::DType::bf16};

ParameterSpec matrix_of(std::string name, std::int64_t rows, std::int64_t cols) {
  return {.name = std::move(name), .dims = {rows, cols}, .compute = layout::cut_cols({rows, cols}, 1)};
}

ParameterSpec experts_of(std::string name, std::int64_t count, std::int64_t rows, std::int64_t cols) {
  ParameterSpec spec = matrix_of(std::move(name), count * rows, cols);
  spec.dims = {count, rows, cols};
  return spec;
}

// A model of two layers. The second layer has experts.
std::vector<ParameterSpec> specs_of() {
  ParameterSpec table = matrix_of("embedding.weight", 64, 16);
  table.reads.per_microbatch = 4;
  ParameterSpec norm{.name = "norm", .dims = {16}, .compute = layout::replicated({1, 16}, 1), .sharded = false};
  ParameterSpec router = matrix_of("layers.1.router.weight", 4, 16);
  router.is_wide = true;
  router.takes_formats = false;
  return {table,
          matrix_of("layers.0.up.weight", 32, 16),
          matrix_of("layers.1.up.weight", 32, 16),
          router,
          experts_of("layers.1.experts.weight", 4, 16, 16),
          norm,
          matrix_of("output.weight", 64, 16)};
}

FormatPolicy policy_of(Format format, std::vector<FormatRule> rules = {}) {
  rules.insert(rules.begin(), {.pattern = "output.weight", .value = Format::bf16, .is_default = true});
  return {.format = format, .rules = std::move(rules)};
}

FormatTable table_of(std::vector<ParameterSpec> specs, const FormatPolicies& policies) {
  for (ParameterSpec& spec : specs) set_formats(spec, policies, kHalf);
  return format_table(specs, policies);
}

WithoutFormat without(NoFormat reason, std::int64_t elements, std::vector<std::string> patterns) {
  return {.reason = reason, .elements = elements, .patterns = std::move(patterns)};
}

std::int64_t elements_of(const FormatShares& shares, Format format) {
  return shares.elements[static_cast<std::size_t>(format)];
}

TEST(FormatTables, CountTheElementsOfEachFormat) {
  const FormatPolicy wire = policy_of(Format::nvfp4, {{"layers.0.*", Format::mxfp8}});
  const FormatTable table = table_of(specs_of(), {.wire = wire, .wire_backward = wire, .products = {}});
  EXPECT_EQ(elements_of(table.wire, Format::nvfp4), 512 + 1024);
  EXPECT_EQ(elements_of(table.wire, Format::mxfp8), 512);
  EXPECT_EQ(table.wire, table.wire_backward);
  for (const FormatShares& shares : {table.wire, table.wire_backward, table.products}) {
    EXPECT_EQ(shares.total(), 1024 + 512 + 512 + 64 + 1024 + 16 + 1024);
    std::int64_t elements = 0;
    for (const WithoutFormat& weights : shares.without) elements += weights.elements;
    EXPECT_EQ(elements, elements_of(shares, Format::bf16));
  }
  EXPECT_EQ(elements_of(table.products, Format::bf16), table.products.total());
}

TEST(FormatTables, StateWhyAWeightHasNoFormat) {
  const FormatPolicy wire = policy_of(Format::nvfp4, {{"*.1.up.*", Format::bf16}});
  const FormatTable table = table_of(specs_of(), {.wire = wire, .wire_backward = wire, .products = {}});
  EXPECT_THAT(
      table.wire.without,
      ElementsAre(without(NoFormat::by_default, 1024, {"output.weight"}), without(NoFormat::rule, 512, {"*.1.up.*"}),
                  without(NoFormat::table, 1024, {"embedding.weight"}),
                  without(NoFormat::router, 64, {"layers.*.router.weight"}), without(NoFormat::vector, 16, {"norm"})));
  EXPECT_EQ(name_of(NoFormat::by_default), "default");
  EXPECT_EQ(name_of(NoFormat::table), "table read by index");
  EXPECT_EQ(name_of(NoFormat::vector), "vector");
}

TEST(FormatTables, CountBackwardWeightsAndProductsSeparately) {
  const FormatTable table =
      table_of(specs_of(), {.wire = policy_of(Format::nvfp4),
                            .wire_backward = policy_of(Format::nvfp4, {{"layers.0.*", Format::bf16}}),
                            .products = policy_of(Format::bf16, {{"layers.1.up.*", Format::fp8}})});
  EXPECT_EQ(elements_of(table.wire, Format::nvfp4), 1024 + 1024);
  EXPECT_EQ(elements_of(table.wire_backward, Format::nvfp4), 512 + 1024);
  EXPECT_EQ(elements_of(table.products, Format::fp8), 512);
  EXPECT_EQ(table.products.without.front(), without(NoFormat::by_default, 512 + 1024 + 1024, {"*"}));
  EXPECT_NE(table.wire, table.wire_backward);
  EXPECT_THAT(table.quantized_at_use, ElementsAre(0, 512, 0, 0, 0));
}

// Decoded products of stacks do not read the planes of a weight, so a stack in the format of its products is unpacked.
TEST(FormatTables, CountStacksInTheirFormat) {
  const std::vector<ParameterSpec> specs{matrix_of("a", 32, 16), experts_of("layers.3.experts.weight", 2, 32, 16)};
  for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
    const FormatPolicy policy{.format = format};
    const FormatTable products = table_of(specs, {.products = policy});
    EXPECT_EQ(elements_of(products.products, format), 1024 + 512);
    EXPECT_TRUE(products.products.without.empty());
    EXPECT_EQ(products.quantized_at_use[static_cast<std::size_t>(format)], 1024 + 512);
    ParameterSpec stack = specs.back();
    set_formats(stack, {.wire = policy, .wire_backward = policy, .products = policy}, kHalf);
    EXPECT_EQ(unpacked_to(stack), Unpacked::decoded);
    EXPECT_FALSE(is_quantized_at_use(stack));
    EXPECT_EQ(stack.backward.has_value(), format == Format::mxfp8);
    if (stack.backward) EXPECT_EQ(unpacked_to(backward_weight(stack)), Unpacked::decoded);
  }
}

// If fprop multiplies codes, it reads the planes. dgrad reads those of a backward weight only if it multiplies codes
// too.
TEST(FormatTables, LeaveStacksPackedIfTheirProductsMultiplyCodes) {
  using enum quant::ProductKernel;
  const FormatPolicy fp8{.format = Format::fp8}, mxfp8{.format = Format::mxfp8};
  for (const auto recipe : {quant::Fp8Recipe::hybrid, quant::Fp8Recipe::e4m3}) {
    FormatPolicy products = fp8;
    products.stacks = {.recipe = recipe, .only_native = true};
    const bool is_e4m3 = recipe == quant::Fp8Recipe::e4m3;
    ParameterSpec stack = experts_of("layers.3.experts.weight", 2, 32, 16), odd = experts_of("experts", 2, 40, 16),
                  other = stack;
    set_formats(stack, {.wire = fp8, .wire_backward = fp8, .products = products}, kHalf);
    EXPECT_EQ(stack.kernels, (is_e4m3 ? quant::StackKernels{native, native, native} : quant::StackKernels{native}));
    EXPECT_EQ(unpacked_to(stack), Unpacked::nothing);
    EXPECT_FALSE(is_quantized_at_use(stack));
    set_formats(odd, {.wire = fp8, .wire_backward = fp8, .products = products}, kHalf);
    EXPECT_EQ(unpacked_to(odd), Unpacked::decoded);
    set_formats(other, {.wire = mxfp8, .wire_backward = fp8, .products = products}, kHalf);
    EXPECT_EQ(unpacked_to(other), Unpacked::values);
    ASSERT_TRUE(other.backward);
    EXPECT_EQ(unpacked_to(backward_weight(other)), is_e4m3 ? Unpacked::nothing : Unpacked::decoded);
  }
}

}  // namespace
}  // namespace tessera::shard::table
