#include "tests/nn/layer_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <mutex>

#include "tessera/comm/local/world.h"
#include "tessera/layout/dense.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/aten_types.h"
#include "tessera/runtime/runtime.h"
#include "tests/nn/expect_paired.h"
#include "tests/runtime/elements.h"

namespace tessera::nn {

std::vector<LayerCase> layer_cases() {
  std::vector<LayerCase> cases;
  for (const int tp : {1, 2, 3})
    for (const int gtp : {1, 2})
      for (const bool sequence_parallel : {false, true}) {
        if (tp == 1 && sequence_parallel) continue;
        LayerCase how{.tp = tp, .gtp = gtp, .sequence_parallel = sequence_parallel};
        if (tp == 3 && sequence_parallel) how.split.weights = {0, 2, 1};
        if (gtp == 2 && sequence_parallel) how.chunks = tp;
        how.overlap = tp == 3 && sequence_parallel;
        cases.push_back(how);
      }
  return cases;
}

std::string name_of(const LayerCase& how) {
  return fmt::format("tp{}_gtp{}{}_{}", how.tp, how.gtp, how.sequence_parallel ? "_sequence_parallel" : "",
                     name_of(how.recompute));
}

RankRanges uneven_parts(std::int64_t n, int tp) {
  const std::int64_t first = (n + 1) / tp;
  if (tp == 1) return {{{0, n}}};
  if (tp == 2) return {{{0, first}}, {{first, n}}};
  return {{{0, first}}, {}, {{first, n}}};
}

RankRanges stacked_parts(const RankRanges& parts, std::int64_t n, int blocks) {
  RankRanges stacked(parts.size());
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    for (int block = 0; block < blocks; ++block)
      for (const layout::Range& range : parts[rank])
        stacked[rank].push_back({block * n + range.begin, block * n + range.end});
  return stacked;
}

at::Tensor arbitrary_values(at::IntArrayRef shape, double seed) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return at::arange(count, at::kDouble).mul(1.7).add(seed).sin().mul(23.1).sin().reshape(shape);
}

namespace {

double seed_of(const std::string& name) {
  double seed = 0;
  for (const char letter : name) seed = seed * 1.3 + letter;
  return seed;
}

}  // namespace

LayerWeight by_rows(const std::string& name, std::int64_t rows, std::int64_t cols, const RankRanges& parts) {
  return {.name = name,
          .value = arbitrary_values({rows, cols}, seed_of(name)),
          .compute = layout::rows_by_rank({rows, cols}, parts)};
}

LayerWeight by_columns(const std::string& name, std::int64_t rows, std::int64_t cols, const RankRanges& parts) {
  return {.name = name,
          .value = arbitrary_values({rows, cols}, seed_of(name)),
          .cut = WeightCut::columns,
          .compute = layout::cols_by_rank({rows, cols}, parts)};
}

LayerWeight cut_vector(const std::string& name, std::int64_t size, const RankRanges& parts) {
  return {.name = name,
          .value = arbitrary_values({size}, seed_of(name)),
          .cut = WeightCut::vector,
          .compute = layout::cols_by_rank({1, size}, parts)};
}

LayerWeight whole_vector(const std::string& name, std::int64_t size, int tp, bool partial_gradient) {
  return {.name = name,
          .value = arbitrary_values({size}, seed_of(name)).mul(0.3).add(1.0),
          .cut = WeightCut::vector,
          .compute = layout::replicated({1, size}, tp),
          .sharded = false,
          .partial_gradient = partial_gradient};
}

namespace {

// In the model's type.
at::Tensor rounded(const at::Tensor& values, const LayerCase& how) {
  const at::Tensor numbers = how.product == quant::Format::bf16 ? values : values.mul(7.49).round();
  return numbers.to(ops::to_scalar_type(how.type));
}

// Logical tensors of one sample, rounded to the model's type and widened to fp64.
std::vector<at::Tensor> inputs_of(const Layer& layer, const LayerCase& how, int sample) {
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 0; i < layer.inputs.size(); ++i)
    inputs.push_back(
        rounded(arbitrary_values({layer.tokens, layer.inputs[i].width}, 5.0 * sample + 0.7 * i), how).to(at::kDouble));
  return inputs;
}

// Maps elements of the buffer to elements of the logical tensor.
struct Places {
  at::Tensor buffer, logical;
};
Places places_of(const layout::LocalLayout& local, std::int64_t cols) {
  std::vector<std::int64_t> buffer, logical;
  runtime::for_each_element(local, cols, [&](std::int64_t at, std::int64_t index) {
    buffer.push_back(at);
    logical.push_back(index);
  });
  const auto tensor = [](const std::vector<std::int64_t>& values) {
    at::Tensor result = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
    std::ranges::copy(values, result.mutable_data_ptr<std::int64_t>());
    return result;
  };
  return {tensor(buffer), tensor(logical)};
}

// Returns a rank's part of a logical tensor.
at::Tensor part_of(const at::Tensor& logical, const Held& held, const LayerCase& how, int tp_rank) {
  if (held.kind == Held::Kind::all) return logical;
  if (held.kind == Held::Kind::columns) {
    std::vector<at::Tensor> columns{logical.narrow(1, 0, 0)};
    for (const layout::Range& range : held.ranges[static_cast<std::size_t>(tp_rank)])
      columns.push_back(logical.narrow(1, range.begin, range.size()));
    return at::cat(columns, 1);
  }
  if (!how.sequence_parallel || how.tp == 1) return logical;
  const layout::Range rows = how.split.part(logical.size(0), tp_rank, how.tp);
  return logical.narrow(0, rows.begin, rows.size());
}

// Returns a rank's part of an output's gradient. Ranks that hold the same column have different gradients for it.
at::Tensor cotangent(const at::Tensor& output, const Held& held, const LayerCase& how, int tp_rank, int number) {
  const at::Tensor logical = rounded(arbitrary_values(output.sizes(), 77.0 + 3 * number), how).to(at::kDouble);
  const at::Tensor part = part_of(logical, held, how, tp_rank);
  return held.kind == Held::Kind::columns ? part * static_cast<double>(1 << tp_rank) : part;
}

// The results of one rank.
struct RankRecord {
  int tp_rank = 0, part = 0;
  std::map<int, std::vector<at::Tensor>> outputs, input_gradients;  // key: sample
  std::map<std::string, std::pair<Places, at::Tensor>> main_grads;
  schedule::Trace trace;
  std::vector<std::string> names;
};

struct Reference {
  std::map<int, std::vector<at::Tensor>> inputs, outputs, input_gradients;  // key: sample
  LogicalWeights gradients;
};

int samples_of(const LayerCase& how) {
  return how.gtp * how.uses * how.microbatches;
}

Reference reference_of(const Layer& layer, const LayerCase& how) {
  Reference reference;
  LogicalWeights weights;
  for (const LayerWeight& weight : layer.weights)
    weights[weight.name] = rounded(weight.value, how).to(at::kDouble).detach().requires_grad_();
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int number = 0; number < samples_of(how); ++number) {
    Sample sample{.number = number, .inputs = inputs_of(layer, how, number)};
    for (at::Tensor& input : sample.inputs) input.requires_grad_();
    const std::vector<at::Tensor> outputs = layer.reference(weights, sample);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Held& held = layer.outputs[i];
      if (held.kind != Held::Kind::columns)
        sum = sum + (outputs[i] * cotangent(outputs[i], all_tokens(), how, 0, number)).sum();
      else
        for (int rank = 0; rank < how.tp; ++rank)
          sum = sum + (part_of(outputs[i], held, how, rank) * cotangent(outputs[i], held, how, rank, number)).sum();
      reference.outputs[number].push_back(outputs[i].detach());
    }
    reference.inputs[number] = sample.inputs;
  }
  sum.backward();
  for (const auto& [name, weight] : weights) reference.gradients[name] = weight.grad();
  for (const auto& [number, inputs] : reference.inputs)
    for (const at::Tensor& input : inputs) reference.input_gradients[number].push_back(input.grad());
  return reference;
}

Weight weight_of(const LayerWeight& weight, const runtime::Runtime& runtime, schedule::ParameterId id) {
  const layout::Shape shape = weight.compute.shape;
  const std::int64_t local = runtime.parameters().local_compute(id).size;
  if (weight.cut == WeightCut::vector) return {.id = id, .cols = local, .is_vector = true};
  if (weight.cut == WeightCut::columns) return {.id = id, .rows = shape.rows, .cols = local / shape.rows};
  return {.id = id, .rows = local / shape.cols, .cols = shape.cols};
}

LayerRank register_weights(const Layer& layer, const LayerCase& how, const Context& context,
                           runtime::Runtime& runtime) {
  std::map<std::string, Weight> weights;
  for (const LayerWeight& weight : layer.weights) {
    const layout::Shape shape = weight.compute.shape;
    std::vector<std::int64_t> dims{shape.rows, shape.cols};
    if (weight.cut == WeightCut::vector) dims.erase(dims.begin());
    if (weight.matrices > 1) dims = {weight.matrices, shape.rows / weight.matrices, shape.cols};
    const schedule::ParameterId id = runtime.parameters().add({.name = weight.name,
                                                               .dims = dims,
                                                               .compute = weight.compute,
                                                               .sharded = weight.sharded,
                                                               .partial_gradient = weight.partial_gradient,
                                                               .trainable = weight.name != how.frozen,
                                                               .reads = weight.reads});
    shard::ShardedParameter& parameter = runtime.parameter(id);
    at::Tensor stored = ops::view_of(parameter.weight().data(), {parameter.local_storage.size}, how.type);
    const Places places = places_of(parameter.local_storage, shape.cols);
    stored.index_copy_(0, places.buffer, rounded(weight.value, how).flatten().index_select(0, places.logical));
    runtime.program().publish(id);
    weights[weight.name] = weight_of(weight, runtime, id);
    if (weight.cut != WeightCut::vector) weights[weight.name].product = how.product;
  }
  return {{.context = context, .id = {}, .policy = how.recompute}, std::move(weights)};
}

// Runs forward and, in a training step, backward of one microbatch.
void run_microbatch(const Layer& layer, const LayerCase& how, LayerRank& rank, int microbatch,
                    const Reference& expected, RankRecord& record) {
  const bool trains = at::GradMode::is_enabled();
  std::vector<at::Tensor> roots, gradients;
  std::map<int, std::vector<at::Tensor>> inputs;
  for (int use = 0; use < how.uses; ++use) {
    const int number = record.part + how.gtp * (use + how.uses * microbatch);
    Sample sample{.number = number, .inputs = {}};
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
      const at::Tensor logical = expected.inputs.at(number)[i].detach();
      sample.inputs.push_back(part_of(logical, layer.inputs[i].held, how, record.tp_rank)
                                  .to(ops::to_scalar_type(how.type))
                                  .clone()
                                  .requires_grad_(trains));
    }
    inputs[number] = sample.inputs;
    const std::vector<at::Tensor> outputs = layer.forward(rank, sample);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      record.outputs[number].push_back(outputs[i].detach().clone());
      roots.push_back(outputs[i]);
      gradients.push_back(cotangent(expected.outputs.at(number)[i], layer.outputs[i], how, record.tp_rank, number)
                              .to(outputs[i].scalar_type()));
    }
  }
  if (!trains) return;
  torch::autograd::backward(roots, gradients);
  for (const auto& [number, tensors] : inputs)
    for (const at::Tensor& input : tensors) record.input_gradients[number].push_back(input.grad());
}

RankRecord run_step(const Layer& layer, const LayerCase& how, runtime::Runtime& runtime, LayerRank& rank,
                    const Reference& expected, schedule::StepKind kind) {
  const at::AutoGradMode mode(kind == schedule::StepKind::train);
  RankRecord record{.tp_rank = runtime.parallel().place().compute, .part = runtime.parallel().place().part};
  runtime.program().begin_step(kind, how.microbatches);
  for (int microbatch = 0; microbatch < how.microbatches; ++microbatch) {
    runtime.program().begin_microbatch(microbatch);
    rank.pass.id.microbatch = microbatch;
    run_microbatch(layer, how, rank, microbatch, expected, record);
    runtime.program().end_microbatch(microbatch);
  }
  runtime.program().end_step();
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    record.names.push_back(parameter.spec.name);
    if (!parameter.spec.trainable) continue;
    const at::Tensor gradient = ops::view_of(const_cast<std::byte*>(parameter.main_grad.data()),
                                             {parameter.local_storage.size}, quant::accumulator_of(how.type));
    record.main_grads[parameter.spec.name] = {places_of(parameter.local_storage, parameter.storage.shape.cols),
                                              gradient.clone()};
  }
  record.trace = runtime.trace();
  expect_distinct(static_cast<const runtime::RunningProgram&>(runtime.program()).stashes());
  return record;
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  if (expected.numel() == 0) return;
  const double largest = expected.abs().max().item<double>();
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), tolerance * largest)
      << "largest expected magnitude " << largest;
}

void expect_outputs(const Layer& layer, const LayerCase& how, const RankRecord& record, const Reference& expected) {
  for (const auto& [number, outputs] : record.outputs) {
    ASSERT_EQ(outputs.size(), layer.outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      SCOPED_TRACE(fmt::format("output {} of sample {} on tp rank {}", i, number, record.tp_rank));
      const at::Tensor& whole = expected.outputs.at(number)[i];
      const at::Tensor part = part_of(whole, layer.outputs[i], how, record.tp_rank);
      const double largest = whole.abs().max().item<double>();
      ASSERT_EQ(outputs[i].sizes(), part.sizes());
      if (part.numel() == 0) continue;
      EXPECT_LE((outputs[i].to(at::kDouble) - part).abs().max().item<double>(), how.tolerance * largest);
    }
  }
}

// Gradients that are distributed over the ranks. Without sequence parallelism, each rank has the gradients of all
// tokens.
void expect_input_gradients(const Layer& layer, const LayerCase& how, const std::vector<RankRecord>& records,
                            const Reference& expected) {
  for (const auto& [number, gradients] : expected.input_gradients)
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      SCOPED_TRACE(fmt::format("gradient of input {} of sample {}", i, number));
      const Held& held = layer.inputs[i].held;
      at::Tensor sum = at::zeros_like(gradients[i]);
      for (const RankRecord& record : records) {
        const auto found = record.input_gradients.find(number);
        if (found == record.input_gradients.end()) continue;
        const at::Tensor& part = found->second[i];
        ASSERT_TRUE(part.defined());
        if (held.kind != Held::Kind::columns && !(how.sequence_parallel && how.tp > 1)) {
          expect_close(part, gradients[i], how.tolerance);
          sum = gradients[i];
          continue;
        }
        at::Tensor places = at::arange(sum.numel(), at::kLong).view(sum.sizes());
        places = part_of(places, held, how, record.tp_rank).flatten();
        sum.view({-1}).index_add_(0, places, part.to(at::kDouble).flatten());
      }
      expect_close(sum, gradients[i], how.tolerance);
    }
}

void expect_weight_gradients(const LayerCase& how, const std::vector<RankRecord>& records, const Reference& expected) {
  for (const auto& [name, gradient] : expected.gradients) {
    SCOPED_TRACE("gradient of " + name);
    if (name == how.frozen) continue;
    ASSERT_TRUE(gradient.defined());
    EXPECT_GT(gradient.abs().max().item<double>(), 0);
    at::Tensor whole = at::zeros_like(gradient).flatten(), holders = whole.clone();
    for (const RankRecord& record : records) {
      const auto& [places, buffer] = record.main_grads.at(name);
      const at::Tensor values = buffer.index_select(0, places.buffer).to(at::kDouble);
      const at::Tensor before = whole.index_select(0, places.logical);
      const at::Tensor is_held = holders.index_select(0, places.logical) > 0;
      EXPECT_TRUE(((before == values) | is_held.logical_not()).all().item<bool>()) << "ranks hold different sums";
      whole.index_copy_(0, places.logical, values);
      holders.index_fill_(0, places.logical, 1);
    }
    EXPECT_TRUE((holders > 0).all().item<bool>()) << "no rank stores some elements";
    expect_close(whole.view(gradient.sizes()), gradient, how.tolerance);
  }
}

void expect_same_outputs(const RankRecord& training, const RankRecord& evaluation) {
  for (const auto& [number, outputs] : training.outputs)
    for (std::size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(outputs[i].equal(evaluation.outputs.at(number)[i])) << "output " << i << " of sample " << number;
  for (const schedule::Event& event : evaluation.trace) {
    EXPECT_EQ(event.pass, schedule::Pass::forward) << to_string(event, training.names);
    EXPECT_TRUE(event.kind == schedule::EventKind::consume || event.kind == schedule::EventKind::release ||
                event.kind == schedule::EventKind::comm || event.kind == schedule::EventKind::need ||
                event.kind == schedule::EventKind::sum)
        << to_string(event, training.names);
  }
}

std::vector<std::string> lines_of(const schedule::Trace& trace, const std::vector<std::string>& names) {
  std::vector<std::string> lines;
  for (const schedule::Event& event : trace) {
    std::string line = fmt::format("{} {}", name_of(event.pass), name_of(event.kind));
    if (event.parameter != schedule::kNoParameter) line += " " + names[static_cast<std::size_t>(event.parameter)];
    if (!event.op.empty()) line += fmt::format(" {} {}", event.op, event.bytes);
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

LayerEvents check_layer(const Layer& layer, const LayerCase& how) {
  SCOPED_TRACE(name_of(how));
  const Reference expected = reference_of(layer, how);
  std::mutex mutex;
  std::vector<RankRecord> records;
  comm::run_local(how.tp * how.gtp, {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, rank_layout({.tp = how.tp, .gtp = how.gtp}));
    const quant::DType accumulator = quant::accumulator_of(how.type);
    runtime::Runtime runtime(parallel, {.model = how.type, .accumulator = accumulator, .wire = accumulator});
    Context context{.program = runtime.program(), .sequence_parallel = how.sequence_parallel};
    context.split = how.split;
    context.products.tp_chunks = how.chunks;
    context.products.tp_overlap = how.overlap;
    LayerRank rank = register_weights(layer, how, context, runtime);
    RankRecord training = run_step(layer, how, runtime, rank, expected, schedule::StepKind::train);
    const RankRecord evaluation = run_step(layer, how, runtime, rank, expected, schedule::StepKind::evaluate);
    const std::lock_guard lock(mutex);
    expect_same_outputs(training, evaluation);
    expect_paired(training.trace, training.names);
    expect_outputs(layer, how, training, expected);
    records.push_back(std::move(training));
  });
  expect_input_gradients(layer, how, records, expected);
  expect_weight_gradients(how, records, expected);
  const auto first =
      std::ranges::find_if(records, [](const RankRecord& record) { return record.tp_rank == 0 && record.part == 0; });
  return {.first_rank = lines_of(first->trace, first->names)};
}

}  // namespace tessera::nn
