// Tests products of a stack in number formats, bit for bit, over ranks that compute with parts of each matrix. The
// expected results are products of ops/ with the scales of the logical matrices.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "tessera/base/text/name_hash.h"
#include "tessera/comm/local/world.h"
#include "tessera/layout/dense.h"
#include "tessera/nn/grouped_linear.h"
#include "tessera/nn/grouped_scales.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/aten_types.h"
#include "tessera/runtime/runtime.h"
#include "tests/nn/layer_check.h"

namespace tessera::nn::grouped_formats {
namespace {

using quant::Format;

constexpr std::int64_t kMatrices = 4, kOut = 5, kIn = 6, kBlocks = 2;
// A multiplier of delayed scaling.
constexpr float kInputScale = 93, kGradientScale = 0.3F;
// The number of the step and the microbatch's first token, for stochastic rounding.
constexpr std::int64_t kStackStep = 5, kStackFirst = 70;

struct StackCase {
  Format product = Format::nvfp4;
  bool by_columns = false;  // which dimension of the matrices is sharded over tp
  int tp = 2;
  bool is_delayed = false;
  bool hadamard = false, is_random = false;  // the recipe of nvfp4

  // The random numbers of a rank's gradients. The rank holds some of their columns if the rows of matrices are sharded.
  quant::StackRounding rounding(int rank) const {
    if (!is_random) return {};
    return {.site = {.seed = 8,
                     .parameter = base::name_hash("stack"),
                     .matrix = 0,
                     .part = static_cast<std::uint32_t>(by_columns ? 0 : rank)},
            .step = &kStackStep,
            .first_token = kStackFirst};
  }
};
std::vector<StackCase> stack_cases() {
  std::vector<StackCase> cases;
  for (const Format product : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4})
    for (const bool by_columns : {false, true})
      for (const int tp : {1, 2}) {
        cases.push_back({product, by_columns, tp, false});
        if (product == Format::fp8) cases.push_back({product, by_columns, tp, true});
        if (product != Format::nvfp4) continue;
        for (const auto& [hadamard, is_random] : {std::pair{true, false}, {false, true}, {true, true}})
          cases.push_back({product, by_columns, tp, false, hadamard, is_random});
      }
  return cases;
}

layout::Range part_of(const StackCase& how, int rank) {
  const std::int64_t size = how.by_columns ? kIn : kOut;
  if (how.tp == 1) return {0, size};
  return rank == 0 ? layout::Range{0, 2} : layout::Range{2, size};
}

// The choices of 10 tokens in two blocks. The last matrix has no rows, and the third has rows only in the second block.
ops::Selection selection_of() {
  const std::int32_t chosen[] = {0, 1, 0, 0, 1, /**/ 2, 0, 2, 1, 2};
  at::Tensor choices = at::zeros({10, 1}, at::kInt);
  std::ranges::copy(chosen, choices.mutable_data_ptr<std::int32_t>());
  return ops::select_rows(choices, {0, kMatrices, kMatrices}, kBlocks);
}

// Values whose rows and columns differ in magnitude, so that parts of matrices have other amaxes than the matrices.
at::Tensor graded(std::int64_t rows, std::int64_t cols, double seed) {
  at::Tensor values = arbitrary_values({rows, cols}, seed).to(at::kFloat);
  for (std::int64_t row = 0; row < rows; ++row) values[row].mul_(1 + row * 7 % 5);
  for (std::int64_t col = 0; col < cols; ++col) values.select(1, col).mul_(1 + col * 3 % 7);
  return values.to(at::kBFloat16);
}
at::Tensor weight_of() {
  return graded(kMatrices * kOut, kIn, 0.3);
}

// Returns the rows of each matrix that are in the range.
at::Tensor rows_of_matrices(const at::Tensor& stack, const layout::Range& range) {
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < kMatrices; ++i) parts.push_back(stack.narrow(0, i * kOut + range.begin, range.size()));
  return at::cat(parts, 0);
}

struct StackProducts {
  at::Tensor y, dx, dw;
};

// The products of one rank's parts, with the scales of the logical matrices.
StackProducts expected_of(const StackCase& how, int rank, const at::Tensor& x, const at::Tensor& dy) {
  const layout::Range part = part_of(how, rank);
  const ops::Selection selection = selection_of();
  const auto own = [&](const at::Tensor& matrix, bool is_cut) {
    return is_cut ? matrix.narrow(1, part.begin, part.size()).contiguous() : matrix;
  };
  const at::Tensor weight = weight_of();
  const at::Tensor own_weight = how.by_columns ? own(weight, true) : rows_of_matrices(weight, part);
  const auto stack = [&](const quant::Encoding& encoding) {
    return decode_stack(own_weight, kMatrices, encoding,
                        ops::grouped_scales(encoding, ops::amaxes_of_stack(weight, kMatrices)));
  };
  const auto as = [&](const at::Tensor& rows, const quant::Encoding& encoding, float multiplier,
                      ops::RowMatrices matrices) {
    ops::RowQuantization result{.encoding = encoding,
                                .transform = how.hadamard && matrices == ops::RowMatrices::experts};
    result.whole = ops::grouped_scales(encoding, ops::amaxes_of_rows(rows, selection, matrices, result.transform));
    if (how.is_delayed)
      result.whole = {.multiplier = at::full({1}, multiplier), .inverse = at::full({1}, 1 / multiplier), .amax = {}};
    return result;
  };
  const quant::Encoding input = input_encoding(how.product),
                        gradient = gradient_encoding(how.product, quant::Fp8Recipe::hybrid);
  const at::Tensor own_x = own(x, how.by_columns), own_dy = own(dy, !how.by_columns);
  using enum ops::RowMatrices;
  StackProducts result;
  result.y = grouped_fprop(own_x, as(x, input, kInputScale, blocks), stack(weight_encoding(how.product)), selection);
  ops::RowQuantization dy_rows = as(dy, gradient, kGradientScale, blocks);
  dy_rows.rounding = how.rounding(rank);
  result.dx = grouped_dgrad(own_dy, dy_rows, stack(columnwise_encoding(how.product)), selection);
  result.dw = at::zeros(own_weight.sizes(), at::kFloat);
  const ops::RowQuantization x_as = as(x, input, kInputScale, experts);
  ops::RowQuantization dy_as = as(dy, gradient, kGradientScale, experts);
  dy_as.rounding = how.rounding(rank);
  grouped_wgrad({.rows = own_dy, .as = dy_as}, {.rows = own_x, .as = x_as}, selection, result.dw, false);
  return result;
}

// The stack on one rank.
class FormatStack {
 public:
  FormatStack(comm::World& world, const StackCase& how)
      : how_(how),
        parallel_(shard::make_parallel_groups(world, nn::rank_layout({.tp = how.tp}), /*with_casts=*/true)),
        runtime_(parallel_, {.model = quant::DType::bf16}),
        scales_({.history = 2}, base::Device{}),
        context_{.program = runtime_.program(), .products = {.history = 2}} {
    context_.products.hadamard = how.hadamard;
    context_.products.rounding = how.is_random ? GradientRounding::stochastic : GradientRounding::nearest;
    if (how.is_delayed) context_.scales = &scales_;
    const layout::Range part = part_of(how, rank());
    weight_.id = runtime_.parameters().add(
        {.name = "stack", .dims = {kMatrices, kOut, kIn}, .compute = compute_layout(), .product = how.product});
    weight_.rows = how.by_columns ? kMatrices * kOut : kMatrices * part.size();
    weight_.cols = how.by_columns ? part.size() : kIn;
    weight_.product = how.product;
    add_scales(context_, weight_);
    const at::Tensor own =
        how.by_columns ? weight_of().narrow(1, part.begin, part.size()) : rows_of_matrices(weight_of(), part);
    shard::ShardedParameter& parameter = runtime_.parameter(weight_.id);
    ops::view_of(parameter.weight().data(), {weight_.rows, weight_.cols}, quant::DType::bf16).copy_(own);
    runtime_.program().publish(weight_.id);
    if (how.is_delayed)
      scales_.set_state(std::vector<float>{0, 0, 0, 0, kInputScale, kGradientScale}, *runtime_.parallel().compute);
  }

  int rank() const { return context_.tp_rank(); }
  DelayedScales& scales() { return scales_; }
  StackCut cut() const { return cut_of(context_, weight_); }

  StackProducts train(const at::Tensor& x, const at::Tensor& dy) {
    const layout::Range part = part_of(how_, rank());
    const auto own = [&](const at::Tensor& matrix, bool is_cut) {
      return is_cut ? matrix.narrow(1, part.begin, part.size()).contiguous() : matrix;
    };
    const at::Tensor own_x = own(x, how_.by_columns), own_dy = own(dy, !how_.by_columns);
    const GroupedRows rows{.selection = selection_of(), .own_rows = 10};
    runtime_.program().begin_step(schedule::StepKind::train, 1);
    runtime_.program().begin_microbatch(0);
    const PassState forward{
        .context = context_, .id = {0}, .random = {.seed = 8, .step = &kStackStep, .first_token = kStackFirst}};
    const PassState backward = forward.in(schedule::Pass::backward);
    StackProducts result;
    result.y = grouped_fprop(forward, weight_, own_x, rows).clone();
    result.dx = grouped_dgrad(backward, weight_, own_dy, rows).clone();
    grouped_wgrad(backward, weight_, own_dy, own_x, rows);
    runtime_.program().end_microbatch(0);
    runtime_.program().end_step();
    result.dw =
        ops::view_of(runtime_.parameter(weight_.id).main_grad.data(), {weight_.rows, weight_.cols}, quant::DType::fp32)
            .clone();
    return result;
  }

 private:
  layout::Layout compute_layout() const {
    const layout::Shape shape{kMatrices * kOut, kIn};
    RankRanges ranges;
    for (int rank = 0; rank < how_.tp; ++rank) {
      const layout::Range part = part_of(how_, rank);
      std::vector<layout::Range> own;
      for (std::int64_t i = 0; i < (how_.by_columns ? 1 : kMatrices); ++i)
        own.push_back({i * kOut + part.begin, i * kOut + part.end});
      ranges.push_back(std::move(own));
    }
    return how_.by_columns ? layout::cols_by_rank(shape, ranges) : layout::rows_by_rank(shape, ranges);
  }

  const StackCase& how_;
  shard::ParallelGroups parallel_;
  runtime::Runtime runtime_;
  DelayedScales scales_;
  Context context_;
  Weight weight_;
};

void on_stack_ranks(const std::function<void(const StackCase& how, FormatStack& stack)>& body) {
  for (const StackCase& how : stack_cases())
    comm::run_local(how.tp, {}, [&](comm::World& world) {
      SCOPED_TRACE(fmt::format("{} by {} tp{}{}", name_of(how.product), how.by_columns ? "columns" : "rows", how.tp,
                               how.is_delayed ? " delayed" : "") +
                   (how.hadamard ? " transformed" : "") + (how.is_random ? " random" : ""));
      FormatStack stack(world, how);
      body(how, stack);
    });
}

TEST(StackInFormats, KnowsWhichDimensionRanksShare) {
  on_stack_ranks([](const StackCase& how, FormatStack& stack) {
    EXPECT_EQ(stack.cut().cols, how.tp > 1 && how.by_columns);
    EXPECT_EQ(stack.cut().rows, how.tp > 1 && !how.by_columns);
  });
}

// Every rank quantizes its parts of rows and matrices with the scales of the logical matrices.
TEST(StackInFormats, MultipliesPartsWithTheScalesOfTheMatrices) {
  on_stack_ranks([](const StackCase& how, FormatStack& stack) {
    const at::Tensor x = graded(10, kIn, 0.7), dy = graded(10, kOut, 0.9);
    const StackProducts got = stack.train(x, dy), expected = expected_of(how, stack.rank(), x, dy);
    EXPECT_TRUE(got.y.equal(expected.y));
    EXPECT_TRUE(got.dx.equal(expected.dx));
    EXPECT_TRUE(got.dw.equal(expected.dw));
  });
}

// A rank's part of a stack over etp 2 and ep 2: rows or columns [begin, end) of two matrices.
layout::Layout layout_of_experts(bool by_columns) {
  layout::Layout result{.shape = {kMatrices * kOut, kIn}};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    std::vector<layout::Band> bands;
    for (std::int64_t i = rank / 2 * 2; i < rank / 2 * 2 + 2; ++i) {
      layout::Box box{.row = i * kOut, .rows = kOut, .col = 0, .cols = kIn};
      std::int64_t &begin = by_columns ? box.col : box.row, &size = by_columns ? box.cols : box.rows;
      begin += rank % 2 * 2;
      size = rank % 2 == 0 ? 2 : size - 2;
      bands.push_back({{box}});
    }
    result.ranks.push_back(layout::stack_densely(bands));
  }
  return result;
}

// Two readers with two tp ranks each compute the same experts. A gradient has the key of its logical matrix, and of the
// etp rank if this rank holds some of its columns. Tokens count from the first token of the first reader.
TEST(StackInFormats, HasTheRandomNumbersOfTheLogicalGradient) {
  constexpr std::int64_t kTokens = 5, kWidth = 4;
  comm::run_local(4, {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(
        world, nn::rank_layout({.tp = 2, .gtp = 2, .experts = ExpertDegrees{.etp = 2, .ep = 2, .egtp = 1}}),
        /*with_casts=*/true);
    runtime::Runtime runtime(parallel, {.model = quant::DType::bf16});
    const Context context{.program = runtime.program()};
    const ExpertPlace place = expert_place(runtime.program());
    const ops::Selection selection = ops::select_rows(at::full({2 * kTokens, 1}, 2 * place.ep.index, at::kInt),
                                                      {2L * place.ep.index, 2, kMatrices}, 2);
    std::vector<Weight> weights;
    for (const bool by_columns : {false, true}) {
      weights.push_back({.product = Format::nvfp4});
      weights.back().id = runtime.parameters().add({.name = by_columns ? "down" : "gate_up",
                                                    .dims = {kMatrices, kOut, kIn},
                                                    .compute = layout_of_experts(by_columns),
                                                    .product = Format::nvfp4,
                                                    .domain = kExpertDomain});
    }
    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    const int reader = world.rank() / 2;
    const PassState pass{.context = context,
                         .id = {0},
                         .random = {.seed = 8, .step = &kStackStep, .first_token = kStackFirst + reader * kTokens}};
    for (const bool by_columns : {false, true})
      for (const auto matrices : {ops::RowMatrices::blocks, ops::RowMatrices::experts})
        for (const OperandKind kind : {OperandKind::input, OperandKind::gradient}) {
          const bool is_gradient = kind == OperandKind::gradient;
          SCOPED_TRACE(fmt::format("columns {} gradient {} rank {}", by_columns, is_gradient, world.rank()));
          const ops::RowQuantization as = row_quantization(pass, weights[by_columns ? 1 : 0], kind,
                                                           graded(selection.room, kWidth, 1), selection, matrices);
          EXPECT_EQ(as.transform, matrices == ops::RowMatrices::experts);
          EXPECT_EQ(as.rounding.step, is_gradient ? &kStackStep : nullptr);
          if (!is_gradient) continue;
          EXPECT_EQ(as.rounding.first_token, kStackFirst);
          const quant::RoundingSite& site = as.rounding.site;
          EXPECT_EQ(site.seed, 8);
          EXPECT_EQ(site.parameter, base::name_hash(by_columns ? "down" : "gate_up"));
          EXPECT_EQ(site.matrix, static_cast<std::uint32_t>(2 * place.ep.index));
          EXPECT_EQ(site.part, static_cast<std::uint32_t>(by_columns ? 0 : place.etp.index));
        }
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
  });
}

// The greatest magnitudes of this rank's rows enter the history, one for each weight and role.
TEST(StackInFormats, FindsOneAmaxForAllMatrices) {
  on_stack_ranks([](const StackCase& how, FormatStack& stack) {
    if (!how.is_delayed) return;
    const at::Tensor x = graded(10, kIn, 0.7), dy = graded(10, kOut, 0.9);
    stack.train(x, dy);
    const layout::Range part = part_of(how, stack.rank());
    const auto amax = [&](const at::Tensor& matrix, bool is_cut) {
      return (is_cut ? matrix.narrow(1, part.begin, part.size()) : matrix).abs().max().item<float>();
    };
    ASSERT_EQ(stack.scales().size(), 2);
    EXPECT_EQ(stack.scales().found()[0], amax(x, how.by_columns));
    EXPECT_EQ(stack.scales().found()[1], amax(dy, !how.by_columns));
  });
}

}  // namespace
}  // namespace tessera::nn::grouped_formats
