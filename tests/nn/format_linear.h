// A linear layer with products in number formats on the ranks of a tp group, and its expected results: products of
// operands that ops/ makes of the logical matrices on one rank, sharded like the ranks' matrices.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "tessera/comm/local/world.h"
#include "tessera/layout/dense.h"
#include "tessera/nn/layers/linear.h"
#include "tessera/nn/layers/linear_products.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/aten_types.h"
#include "tessera/quant/formats/hadamard.h"
#include "tessera/runtime/runtime.h"
#include "tests/nn/layer_check.h"

namespace tessera::nn::formats {

using quant::Format;

constexpr std::uint64_t kRoundingSeed = 11;
constexpr std::int64_t kRoundingStep = 3, kFirstRounded = 40;  // kFirstRounded: logical token of the microbatch

struct FormatCase {
  bool is_column = true;  // column-parallel, or else row-parallel
  int tp = 1;
  bool sequence_parallel = false;
  Recompute policy = Recompute::none;
  Format product = Format::fp8;
  ProductOptions products = {.history = 2};
  std::int64_t tokens = 7, in = 6, out = 5;
  std::int64_t tile = 1;  // ranks' parts begin at multiples of this
  int exponent = 0;       // the ratio between numbers of adjacent tiles is 2 to this power
};

inline std::string name_of(const FormatCase& how) {
  return fmt::format("{} {} tp{}{}{} {} {}{}{}", name_of(how.product), how.is_column ? "column" : "row", how.tp,
                     how.sequence_parallel ? " sequence_parallel" : "",
                     how.products.tp_wire == Format::bf16 ? "" : " codes", name_of(how.policy),
                     how.products.recipe == quant::Fp8Recipe::hybrid ? "hybrid" : "e4m3",
                     how.products.hadamard ? " transform" : "",
                     how.products.rounding == GradientRounding::stochastic ? " stochastic" : "");
}

// Covers every sharding of the layer. With tp 3, rank 1 has no part of the weight.
inline std::vector<FormatCase> cases_of(const FormatCase& base) {
  std::vector<FormatCase> cases;
  for (const bool is_column : {true, false})
    for (const int tp : {1, 2, 3})
      for (const bool sequence_parallel : {false, true})
        for (const Recompute policy : {Recompute::none, Recompute::selective}) {
          if (tp == 1 && sequence_parallel) continue;
          FormatCase how = base;
          how.is_column = is_column, how.tp = tp, how.sequence_parallel = sequence_parallel, how.policy = policy;
          cases.push_back(how);
        }
  return cases;
}

// Also covers gradients in E5M2 and E4M3, gathers of codes and of bf16 tokens, and products in chunks.
inline std::vector<FormatCase> fp8_cases() {
  std::vector<FormatCase> cases;
  for (const quant::Fp8Recipe recipe : {quant::Fp8Recipe::hybrid, quant::Fp8Recipe::e4m3})
    for (const Format wire : {Format::bf16, Format::fp8})
      for (const FormatCase& how :
           cases_of({.products = {.recipe = recipe, .history = 2, .tp_wire = wire, .tp_chunks = 3}}))
        if (wire == Format::bf16 || how.sequence_parallel) cases.push_back(how);
  return cases;
}

// Returns the rows or columns of a rank's part of a weight.
inline layout::Range part_of_weight(const FormatCase& how, int rank) {
  const RankRanges parts = uneven_parts((how.is_column ? how.out : how.in) / how.tile, how.tp);
  const std::vector<layout::Range>& ranges = parts[static_cast<std::size_t>(rank)];
  if (ranges.empty()) return {0, 0};
  return {ranges.front().begin * how.tile, std::min(ranges.front().end * how.tile, how.is_column ? how.out : how.in)};
}
inline at::Tensor narrowed(const at::Tensor& matrix, int dim, const layout::Range& range) {
  return matrix.narrow(dim, range.begin, range.size()).contiguous();
}

// Returns 1, and 2^-exponent in every second tile.
inline at::Tensor tile_grades(std::int64_t extent, std::int64_t tile, int exponent) {
  const at::Tensor is_odd = at::arange(extent, at::kLong).div(tile, "floor").remainder(2);
  return at::pow(2.0, is_odd.to(at::kDouble) * -exponent);
}
// Rows and columns differ in magnitude, so the amaxes of the ranks' parts also differ. If the
// exponent is not 0, adjacent tiles differ too.
inline at::Tensor graded_matrix(const FormatCase& how, std::int64_t rows, std::int64_t cols, int row_sign, int col_sign,
                                double seed) {
  const at::Tensor grades = at::arange(1, rows + 1, at::kDouble).view({rows, 1}) + at::arange(cols, at::kDouble);
  const at::Tensor matrix = arbitrary_values({rows, cols}, seed) * grades *
                            tile_grades(rows, how.tile, row_sign * how.exponent).view({rows, 1}) *
                            tile_grades(cols, how.tile, col_sign * how.exponent);
  return matrix.to(at::kBFloat16);
}

struct LinearMatrices {
  at::Tensor x, dy;  // logical tensors
};
// Along the dimension over which a product sums, tiles that are small in one operand are large in the other operand.
// Therefore every tile contributes to the sum.
inline LinearMatrices linear_matrices(const FormatCase& how, int number) {
  return {.x = graded_matrix(how, how.tokens, how.in, 1, 1, number),
          .dy = graded_matrix(how, how.tokens, how.out, -1, 1, number + 0.5)};
}
inline at::Tensor weight_matrix(const FormatCase& how) {
  return graded_matrix(how, how.out, how.in, -1, -1, 0.3);
}

struct LinearProducts {
  at::Tensor y, dx, dw;
};

// The multipliers of x (input) and dy (gradient). nullopt: computed from the matrices' own amaxes.
using Multipliers = std::optional<std::array<float, 2>>;

// Returns how the logical matrix is quantized in nvfp4. A gradient is rounded as `part`.
inline ops::Quantization nvfp4_quantization(const FormatCase& how, OperandKind kind, const at::Tensor& matrix,
                                            std::uint32_t part) {
  ops::Quantization as{.encoding = quant::input_encoding(Format::nvfp4)};
  as.transform = how.products.hadamard;
  at::Tensor by_columns = matrix;
  if (as.transform) {
    const quant::Extent extent{.rows = matrix.size(0), .cols = matrix.size(1)};
    by_columns = at::empty({quant::transformed_extent(extent).rows, extent.cols}, at::kBFloat16);
    transform_columns(static_cast<const quant::bfloat16*>(matrix.const_data_ptr()), extent,
                      static_cast<quant::bfloat16*>(by_columns.mutable_data_ptr()));
  }
  as.whole = {ops::whole_scale(as.encoding, ops::amax_of(matrix)),
              ops::whole_scale(as.encoding, ops::amax_of(by_columns))};
  if (kind == OperandKind::gradient && how.products.rounding == GradientRounding::stochastic)
    as.rounding = {
        .key = quant::rounding_key({.seed = kRoundingSeed, .parameter = base::name_hash("weight"), .part = part}),
        .step = &kRoundingStep,
        .first_token = kFirstRounded};
  return as;
}

inline ops::Operands operands_of(const FormatCase& how, OperandKind kind, const at::Tensor& matrix,
                                 const Multipliers& multipliers) {
  if (how.product == Format::nvfp4) return quantize(matrix, nvfp4_quantization(how, kind, matrix, /*part=*/0));
  const quant::Encoding encoding = kind == OperandKind::input
                                       ? quant::input_encoding(how.product)
                                       : quant::gradient_encoding(how.product, how.products.recipe);
  if (!multipliers)
    return quantize(matrix, encoding, ops::Sides::both, ops::whole_scale(encoding, ops::amax_of(matrix)));
  const float multiplier = (*multipliers)[kind == OperandKind::input ? 0 : 1];
  const ops::WholeScale scale{.multiplier = at::full({1}, multiplier, at::kFloat),
                              .inverse = at::full({1}, 1.0F / multiplier, at::kFloat),
                              .amax = {}};
  return quantize(matrix, encoding, ops::Sides::both, scale);
}

inline ops::Operands weight_operands(const FormatCase& how) {
  const at::Tensor matrix = weight_matrix(how);
  const ops::WholeScale scale = ops::whole_scale(quant::weight_encoding(how.product), ops::amax_of(matrix));
  return {.rows = weight_operand(matrix, how.product, ops::Sides::rows, scale),
          .columns = weight_operand(matrix, how.product, ops::Sides::columns, scale)};
}

// Returns a part of a matrix. The part has the codes of the whole matrix and is not quantized again.
inline ops::Operands narrowed(const ops::Operands& whole, int dim, const layout::Range& range) {
  ops::Operands part = whole;
  part.rows.values = narrowed(whole.rows.values, dim, range);
  part.columns.values = narrowed(whole.columns.values, 1 - dim, range);
  part.rows.extent = {.rows = part.rows.values.size(0), .cols = part.rows.values.size(1)};
  part.columns.extent = {.rows = part.columns.values.size(0), .cols = part.columns.values.size(1)};
  return part;
}

// Adds the ranks' parts in rank order and rounds once.
inline at::Tensor sum_of_parts(const std::vector<LinearProducts>& ranks, at::Tensor LinearProducts::*part) {
  at::Tensor sum = (ranks.front().*part).to(at::kFloat);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) sum = sum + (ranks[rank].*part).to(at::kFloat);
  return sum.to(at::kBFloat16);
}

// Returns a rank's part of a gradient whose columns are sharded. In nvfp4 each rank has other random numbers.
inline ops::Operands part_of_gradient(const FormatCase& how, const at::Tensor& gradient, const ops::Operands& whole,
                                      const layout::Range& part, int rank) {
  if (how.product != Format::nvfp4) return narrowed(whole, 1, part);
  return quantize(narrowed(gradient, 1, part),
                  nvfp4_quantization(how, OperandKind::gradient, gradient, static_cast<std::uint32_t>(rank)));
}

// By rank, for all tokens.
inline std::vector<LinearProducts> expected_products(const FormatCase& how, const LinearMatrices& matrices,
                                                     const Multipliers& multipliers) {
  const ops::Operands x = operands_of(how, OperandKind::input, matrices.x, multipliers), weight = weight_operands(how),
                      dy = operands_of(how, OperandKind::gradient, matrices.dy, multipliers);
  std::vector<LinearProducts> ranks;
  for (int rank = 0; rank < how.tp; ++rank) {
    const layout::Range part = part_of_weight(how, rank);
    const ops::Operands own_x = how.is_column ? x : narrowed(x, 1, part),
                        own_dy = how.is_column ? part_of_gradient(how, matrices.dy, dy, part, rank) : dy,
                        own_weight = narrowed(weight, how.is_column ? 0 : 1, part);
    at::Tensor dw = at::empty({own_weight.rows.extent.rows, own_weight.rows.extent.cols}, at::kFloat);
    multiply_into(own_dy.columns, own_x.columns, dw, /*accumulate=*/false);
    ranks.push_back(
        {.y = multiply(own_x.rows, own_weight.rows), .dx = multiply(own_dy.rows, own_weight.columns), .dw = dw});
  }
  const auto summed = how.is_column ? &LinearProducts::dx : &LinearProducts::y;
  const at::Tensor sum = sum_of_parts(ranks, summed);
  for (LinearProducts& rank : ranks) rank.*summed = sum;
  return ranks;
}

// The layer on one rank.
class FormatLinear {
 public:
  FormatLinear(comm::World& world, const FormatCase& how, bool is_delayed)
      : how_(how),
        parallel_(shard::make_parallel_groups(world, nn::rank_layout({.tp = how.tp}), /*with_casts=*/true)),
        runtime_(parallel_, {.model = quant::DType::bf16}),
        scales_(how.products, base::Device{}),
        context_{.program = runtime_.program(), .sequence_parallel = how.sequence_parallel, .products = how.products} {
    context_.scales = is_delayed ? &scales_ : nullptr;
    const layout::Range part = part_of_weight(how, context_.tp_rank());
    const auto parts = uneven_parts_of_weight();
    const layout::Shape shape{how.out, how.in};
    Weight& weight = column_.weight;
    weight.id = runtime_.parameters().add(
        {.name = "weight",
         .dims = {how.out, how.in},
         .compute = how.is_column ? layout::rows_by_rank(shape, parts) : layout::cols_by_rank(shape, parts)});
    weight.rows = how.is_column ? part.size() : how.out;
    weight.cols = how.is_column ? how.in : part.size();
    weight.product = how.product;
    add_scales(context_, weight);
    row_.weight = weight;
    ops::view_of(parameter().weight().data(), {weight.rows, weight.cols}, quant::DType::bf16)
        .copy_(narrowed(weight_matrix(how), how.is_column ? 0 : 1, part));
    runtime_.program().publish(weight.id);
  }

  DelayedScales& scales() { return scales_; }
  runtime::Runtime& runtime() { return runtime_; }
  int rank() const { return context_.tp_rank(); }

  // Returns this rank's part of a logical x or dy.
  at::Tensor own_x(const at::Tensor& x) const { return how_.is_column ? own_tokens_of(x) : own_columns_of(x); }
  at::Tensor own_dy(const at::Tensor& dy) const { return how_.is_column ? own_columns_of(dy) : own_tokens_of(dy); }
  at::Tensor own_tokens_of(const at::Tensor& matrix) const {
    if (!how_.sequence_parallel) return matrix;
    return narrowed(matrix, 0, context_.split.part(how_.tokens, rank(), how_.tp));
  }

  at::Tensor evaluate(const LinearMatrices& matrices) {
    const at::AutoGradMode mode(false);
    runtime_.program().begin_step(schedule::StepKind::evaluate, 1);
    runtime_.program().begin_microbatch(0);
    const at::Tensor y = forward(own_x(matrices.x)).clone();
    end_step();
    return y;
  }

  // Runs one microbatch that uses the layer once for each element of `uses`. Returns y and dx of each use. The first
  // element of the result also has dw, the sum over all uses.
  std::vector<LinearProducts> train(const std::vector<LinearMatrices>& uses) {
    const at::AutoGradMode mode(true);
    runtime_.program().begin_step(schedule::StepKind::train, 1);
    runtime_.program().begin_microbatch(0);
    std::vector<at::Tensor> inputs, outputs, gradients;
    for (const LinearMatrices& matrices : uses) {
      inputs.push_back(own_x(matrices.x).clone().requires_grad_());
      outputs.push_back(forward(inputs.back()));
      gradients.push_back(own_dy(matrices.dy));
    }
    torch::autograd::backward(outputs, gradients);
    end_step();
    std::vector<LinearProducts> result;
    for (std::size_t use = 0; use < uses.size(); ++use)
      result.push_back({.y = outputs[use].detach().clone(), .dx = inputs[use].grad(), .dw = {}});
    const Weight& weight = column_.weight;
    result.front().dw =
        ops::view_of(parameter().main_grad.data(), {weight.rows, weight.cols}, quant::DType::fp32).clone();
    return result;
  }

 private:
  RankRanges uneven_parts_of_weight() const {
    RankRanges parts;
    for (int rank = 0; rank < how_.tp; ++rank) {
      const layout::Range part = part_of_weight(how_, rank);
      parts.push_back(part.size() > 0 ? std::vector{part} : std::vector<layout::Range>{});
    }
    return parts;
  }
  at::Tensor own_columns_of(const at::Tensor& matrix) const {
    return narrowed(matrix, 1, part_of_weight(how_, rank()));
  }
  at::Tensor forward(const at::Tensor& x) {
    return how_.is_column ? column_linear(pass(), column_, x, {}, how_.tokens).y
                          : sum_of(pass(), row_linear(pass(), row_, x));
  }
  PassState pass() const {
    return {.context = context_,
            .id = {0},
            .policy = how_.policy,
            .random = {.seed = kRoundingSeed,
                       .step = &kRoundingStep,
                       .first_token = kFirstRounded,
                       .first_own_token = kFirstRounded + context_.own_tokens(how_.tokens).begin}};
  }
  shard::ShardedParameter& parameter() { return runtime_.parameter(column_.weight.id); }
  void end_step() {
    runtime_.program().end_microbatch(0);
    runtime_.program().end_step();
  }

  const FormatCase& how_;
  shard::ParallelGroups parallel_;
  runtime::Runtime runtime_;
  DelayedScales scales_;
  Context context_;
  ColumnLinear column_;
  RowLinear row_;
};

inline void on_format_ranks(const FormatCase& how, bool is_delayed,
                            const std::function<void(FormatLinear& linear)>& body) {
  comm::run_local(how.tp, {}, [&](comm::World& world) {
    SCOPED_TRACE(name_of(how));
    FormatLinear linear(world, how, is_delayed);
    body(linear);
  });
}

// Evaluates the second of two uses, and then runs a training step with both uses.
inline void expect_products(FormatLinear& linear, const FormatCase& how, const Multipliers& multipliers,
                            int first_number) {
  const std::vector<LinearMatrices> uses{linear_matrices(how, first_number), linear_matrices(how, first_number + 1)};
  std::vector<LinearProducts> expected;
  for (const LinearMatrices& use : uses)
    expected.push_back(expected_products(how, use, multipliers)[static_cast<std::size_t>(linear.rank())]);
  const auto own_y = [&](const LinearProducts& of) { return how.is_column ? of.y : linear.own_tokens_of(of.y); };
  const auto own_dx = [&](const LinearProducts& of) { return how.is_column ? linear.own_tokens_of(of.dx) : of.dx; };
  EXPECT_TRUE(linear.evaluate(uses[1]).equal(own_y(expected[1])));
  const std::vector<LinearProducts> actual = linear.train(uses);
  for (std::size_t use = 0; use < uses.size(); ++use) {
    EXPECT_TRUE(actual[use].y.equal(own_y(expected[use]))) << "use " << use;
    EXPECT_TRUE(actual[use].dx.equal(own_dx(expected[use]))) << "use " << use;
  }
  EXPECT_TRUE(actual.front().dw.equal(expected[0].dw + expected[1].dw));
}

}  // namespace tessera::nn::formats
