#include "tests/bench/synthetic.h"

#include <cstring>

#include "tessera/base/error.h"
#include "tessera/shard/host_time.h"

namespace tessera::bench {
namespace {

using schedule::ParameterId;
using schedule::Pass, schedule::PassId;

constexpr std::int64_t kColumns = 64;
constexpr auto kElement = static_cast<std::int64_t>(sizeof(float));

void check_layer(const SyntheticLayer& layer) {
  if (layer.weight_bytes < 1 || layer.forward_seconds < 0 || layer.update_seconds < 0)
    throw InputError("a layer of {} bytes, {} s forward and {} s of update: expected 1 byte and 0 s or more",
                     layer.weight_bytes, layer.forward_seconds, layer.update_seconds);
}

}  // namespace

SyntheticProgram::SyntheticProgram(shard::ParallelGroups& parallel, SyntheticModel model,
                                   const runtime::RuntimeOptions& options)
    : parallel_(parallel),
      model_(std::move(model)),
      runtime_(parallel, {}, options),
      activations_(static_cast<std::size_t>(model_.activation_bytes)) {
  if (model_.layers.empty()) throw InputError("a model without layers");
  activations_.fill_zero();
  for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
    check_layer(model_.layers[layer]);
    if (weight_of(layer) != static_cast<ParameterId>(layer)) continue;
    const std::int64_t row = kColumns * kElement, rows = (model_.layers[layer].weight_bytes + row - 1) / row;
    runtime_.parameters().add(
        {.name = fmt::format("layer {}", layer),
         .dims = {rows, kColumns},
         .compute = layout::cut_rows({rows, kColumns}, {{"rows", rows}}, parallel.program().size())});
  }
}

ParameterId SyntheticProgram::weight_of(std::size_t layer) const {
  return model_.tied && layer + 1 == model_.layers.size() ? 0 : static_cast<ParameterId>(layer);
}

void SyntheticProgram::step(int microbatches) {
  segments_.clear();
  runtime_.program().begin_step(schedule::StepKind::train, microbatches);
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    runtime_.program().begin_microbatch(microbatch);
    const auto takes_part = [&](std::size_t layer) { return microbatch == 0 || !model_.layers[layer].once; };
    for (std::size_t layer = 0; layer < model_.layers.size(); ++layer)
      if (takes_part(layer)) multiply(layer, {microbatch, Pass::forward});
    for (std::size_t layer = model_.layers.size(); layer-- > 0;)
      if (takes_part(layer)) backward(layer, microbatch);
    runtime_.program().end_microbatch(microbatch);
  }
  runtime_.program().end_step();
  for (const ParameterId id : runtime_.by_first_use()) {
    compute(model_.layers[static_cast<std::size_t>(id)].update_seconds);
    runtime_.program().publish(id);
    happened();
  }
}

void SyntheticProgram::backward(std::size_t layer, int microbatch) {
  multiply(layer, {microbatch, Pass::backward});
  const ParameterId id = weight_of(layer);
  const runtime::GradientBuffer gradient = runtime_.program().grad_buffer(id, microbatch);
  const auto elements = static_cast<std::size_t>(runtime_.parameter(id).local_compute.size);
  if (!gradient.accumulate) std::memset(gradient.data, 0, elements * quant::size_of(gradient.dtype));
  compute(model_.layers[layer].forward_seconds);
  runtime_.program().produce(id, microbatch);
  happened();
}

void SyntheticProgram::multiply(std::size_t layer, PassId pass) {
  runtime_.program().consume(weight_of(layer), pass);
  happened();
  compute(model_.layers[layer].forward_seconds);
  runtime_.program().release(weight_of(layer), pass);
  happened();
  sum_over_tp(pass);
}

void SyntheticProgram::sum_over_tp(PassId pass) {
  if (runtime_.program().nominal_size() == 1 || model_.activation_bytes == 0) return;
  const std::int64_t elements = model_.activation_bytes / kElement;
  const runtime::Issued issued =
      runtime_.program().issue({.out = activations_.data(), .counts = {&elements, 1}, .pass = pass});
  happened();
  runtime_.program().wait(issued);
}

void SyntheticProgram::compute(double seconds) {
  pending_ += seconds;
  pass_time(parallel_, seconds);
}

void SyntheticProgram::happened() {
  segments_.push_back(pending_);
  pending_ = 0;
}

MakeTimedSteps steps_of(const SyntheticModel& model) {
  return [model](shard::ParallelGroups& parallel, const runtime::RuntimeOptions& options) {
    return std::make_unique<SyntheticProgram>(parallel, model, options);
  };
}

}  // namespace tessera::bench
