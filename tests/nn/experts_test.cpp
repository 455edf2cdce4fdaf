// Tests the feed-forward part of a sparse block on one rank: its bits are those of the operators, with each value
// rounded once. Whole runs test meshes and compare with other programs.
#include "tessera/nn/experts/experts.h"

#include "tessera/runtime/runtime.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>

#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/experts/permute.h"
#include "tessera/ops/experts/weighted_swiglu.h"
#include "tessera/ops/grouped/grouped.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kSequence = 9, kHidden = 12, kExperts = 5, kInnerWidth = 6;
constexpr double kEps = 1e-5;
const ops::RouterOptions kOptions{.k = 2, .normalizes = true};

using Tensors = std::map<std::string, at::Tensor>;

// Numbers in [-1, 1].
at::Tensor numbers(at::IntArrayRef shape, at::ScalarType type, int seed) {
  const at::Tensor result = at::empty(shape, at::kDouble);
  return at::sin(at::arange(result.numel(), at::kDouble) * (1.3 + seed)).view(shape).to(type);
}

Tensors values_of_weights() {
  return {{"norm", numbers({kHidden}, at::kBFloat16, 1)},
          {"router", numbers({kExperts, kHidden}, at::kFloat, 2)},
          {"gate_up", numbers({kExperts * 2 * kInnerWidth, kHidden}, at::kBFloat16, 3)},
          {"down", numbers({kExperts * kHidden, kInnerWidth}, at::kBFloat16, 4)}};
}

// The gradients of the layer's results, and the tokens that count.
struct Given {
  at::Tensor x = numbers({kSequence, kHidden}, at::kBFloat16, 5);
  at::Tensor dy = numbers({kSequence, kHidden}, at::kBFloat16, 6);
  at::Tensor dprobabilities = numbers({kExperts}, at::kFloat, 7);
  at::Tensor dsquares = numbers({1}, at::kFloat, 8);
  at::Tensor counted = at::ones({kSequence}, at::kBool);
};

struct Results {
  at::Tensor y, dx;
  Tensors gradients;  // gradients of weights, in fp32
};

// Composes the operators.
Results expected_results(const Tensors& w, const Given& given) {
  const ops::RmsNorm normed = ops::rms_norm_forward(given.x, {}, w.at("norm"), kEps);
  const ops::Routing routing = ops::route(ops::router_logits(normed.y, w.at("router")), kOptions);
  const ops::Selection rows = ops::select_rows(routing.experts, {0, kExperts, kExperts}, 1);
  const at::Tensor x = ops::take_rows(normed.y, rows), weights = ops::take_choices(routing.weights, rows);
  const at::Tensor gate_up = ops::grouped_fprop(x, w.at("gate_up"), rows);
  const at::Tensor activated = ops::weighted_swiglu(gate_up, weights, rows);

  const at::Tensor dout = ops::take_rows(given.dy, rows);
  const ops::WeightedSwigluGradients swiglu = ops::weighted_swiglu_backward(
      ops::grouped_dgrad(dout, w.at("down"), rows), gate_up, weights, rows, /*with_output=*/false);
  const at::Tensor of_experts = ops::combine_rows(ops::grouped_dgrad(swiglu.gate_up, w.at("gate_up"), rows), rows);
  const at::Tensor dlogits = ops::route_backward(
      routing, kOptions, {ops::put_choices(swiglu.weights, rows), given.dprobabilities, given.dsquares}, given.counted);
  const at::Tensor dnormed = (of_experts.to(at::kFloat) + ops::router_dgrad(dlogits, w.at("router"))).to(at::kBFloat16);

  Results results{
      .y = ops::combine_rows(ops::grouped_fprop(activated, w.at("down"), rows), rows), .dx = {}, .gradients = {}};
  for (const auto& [name, weight] : w) results.gradients[name] = at::empty(weight.sizes(), at::kFloat);
  results.dx = ops::rms_norm_backward(dnormed, {}, normed.sum, normed.rstd, w.at("norm"), results.gradients["norm"],
                                      /*accumulate=*/false);
  ops::router_wgrad(dlogits, normed.y, results.gradients["router"], /*accumulate=*/false);
  ops::grouped_wgrad(swiglu.gate_up, x, rows, results.gradients["gate_up"], /*accumulate=*/false);
  ops::grouped_wgrad(dout, activated, rows, results.gradients["down"], /*accumulate=*/false);
  return results;
}

Weight add(runtime::Runtime& runtime, const std::string& name, const at::Tensor& value,
           std::vector<std::int64_t> dims) {
  const bool is_vector = value.dim() == 1, is_router = name == "router";
  const layout::Shape shape{is_vector ? 1 : value.size(0), value.size(-1)};
  const schedule::ParameterId id = runtime.parameters().add({.name = name,
                                                             .dims = std::move(dims),
                                                             .compute = layout::replicated(shape, 1),
                                                             .sharded = !is_vector,
                                                             .is_wide = is_router,
                                                             .domain = is_vector || is_router ? 0 : kExpertDomain});
  shard::ShardedParameter& parameter = runtime.parameter(id);
  ops::view_of(parameter.weight().data(), {value.numel()}, ops::to_dtype(value.scalar_type())).copy_(value.flatten());
  runtime.program().publish(id);
  if (is_vector) return {.id = id, .cols = shape.cols, .is_vector = true};
  return {.id = id, .rows = shape.rows, .cols = shape.cols};
}

// Runs one step of the layer.
Results results_of(comm::World& world, const Tensors& w, const Given& given, Recompute policy) {
  shard::ParallelGroups parallel = shard::make_parallel_groups(world, rank_layout({.experts = ExpertDegrees{}}));
  runtime::Runtime runtime(parallel, {.model = quant::DType::bf16, .wire = quant::DType::fp32});
  Context context{.program = runtime.program()};
  const Experts layers{.norm = {.weight = add(runtime, "norm", w.at("norm"), {kHidden}), .eps = kEps},
                       .router = add(runtime, "router", w.at("router"), {kExperts, kHidden}),
                       .gate_up = add(runtime, "gate_up", w.at("gate_up"), {kExperts, 2 * kInnerWidth, kHidden}),
                       .down = add(runtime, "down", w.at("down"), {kExperts, kHidden, kInnerWidth}),
                       .options = kOptions,
                       .local = {.first = 0, .count = kExperts, .all = kExperts}};
  runtime.program().begin_step(schedule::StepKind::train, 1);
  runtime.program().begin_microbatch(0);
  const at::AutoGradMode gradients(true);
  const at::Tensor x = given.x.clone().requires_grad_(true);
  const ExpertsOutput out =
      experts_forward({.context = context, .id = {0}, .policy = policy}, layers, x, {}, given.counted, kSequence);
  torch::autograd::backward({out.y, out.terms.probabilities, out.terms.logsumexp_squares},
                            {given.dy, given.dprobabilities, given.dsquares});
  runtime.program().end_microbatch(0);
  runtime.program().end_step();
  Results results{.y = out.y.detach(), .dx = x.grad(), .gradients = {}};
  for (const auto& [name, weight] : w)
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
      const shard::ShardedParameter& parameter = runtime.parameter(id);
      if (parameter.spec.name == name)
        results.gradients[name] =
            ops::view_of(const_cast<std::byte*>(parameter.main_grad.data()), {weight.numel()}, quant::DType::fp32)
                .clone()
                .view(weight.sizes());
    }
  return results;
}

TEST(ExpertsOfOneRank, HaveTheBitsOfTheOperators) {
  const Tensors weights = values_of_weights();
  const Given given;
  const Results expected = expected_results(weights, given);
  for (const Recompute policy : {Recompute::none, Recompute::selective})
    comm::run_local(1, {}, [&](comm::World& world) {
      const Results found = results_of(world, weights, given, policy);
      EXPECT_TRUE(found.y.equal(expected.y));
      EXPECT_TRUE(found.dx.equal(expected.dx));
      for (const auto& [name, gradient] : expected.gradients)
        EXPECT_TRUE(found.gradients.at(name).equal(gradient)) << name;
    });
}

}  // namespace
}  // namespace tessera::nn
