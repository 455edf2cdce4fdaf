#include "tessera/serve/frozen_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "tessera/ops/device/stream_scope.h"
#include "tessera/train/evaluation.h"
#include "tessera/train/host_view.h"
#include "tessera/train/untrained_values.h"

namespace tessera::serve {
namespace {

// The targets are masked, because the model needs them only for the counts of experts.
models::Batch batch_of(std::span<const std::int64_t> tokens, std::int64_t first) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  models::Batch batch{.tokens = at::empty({count}, at::kLong), .targets = at::full({count}, -1, at::kLong)};
  std::ranges::copy(tokens, batch.tokens.mutable_data_ptr<std::int64_t>());
  batch.layout = {
      .batch = 1, .seq_len = count, .positions = at::arange(first, first + count, at::kLong), .cu_seqlens = {}};
  return batch;
}

}  // namespace

FrozenModel::FrozenModel(comm::World& world, const models::StepOptions& options)
    : parallel_(shard::make_parallel_groups(world, options.layout)),
      runtime_(parallel_, options.types, options.runtime),
      scales_(options.products, parallel_.device),
      context_(models::make_context(runtime_.program(), options, scales_, nullptr)),
      model_(options.build(context_)) {}

FrozenModel::~FrozenModel() {
  if (std::uncaught_exceptions() > exceptions_) {
    runtime_.abandon();
    parallel_.drain();
    return;
  }
  parallel_.compute->record().wait_until_done();
}

void FrozenModel::load(const ReadWeight& read) {
  runtime_.wait_until_idle();
  const std::vector<schedule::ParameterId> biases = model_->router_biases().ids;
  for (schedule::ParameterId id = 0; id < runtime_.parameters().weights(); ++id) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    const auto bytes = static_cast<std::size_t>(shard::bytes_of(parameter.state_elements(), parameter.types.model));
    train::HostView host(parameter.state_weight(), bytes, parallel_);
    read({.name = parameter.spec.name,
          .kind = checkpoint::Kind::weight,
          .dtype = parameter.types.model,
          .dims = parameter.spec.dims,
          .local = parameter.local_state,
          .data = host.data()});
    if (std::ranges::find(biases, id) != biases.end())
      train::require_finite(parameter.spec.name, parameter.types.model, host.data(), parameter.state_elements());
    host.write_back();
    runtime_.program().publish(id);
  }
}

double FrozenModel::evaluate(const train::StepInput& input) {
  const ops::StreamScope scope(parallel_.device, parallel_.compute->stream());
  const at::NoGradGuard no_gradients;
  sum_losses(runtime_, context_, *model_, input, losses_);
  return losses_.result() / static_cast<double>(input.tokens);
}

nn::KeyValueCache FrozenModel::make_cache(std::int64_t capacity) {
  const ops::StreamScope scope(parallel_.device, parallel_.compute->stream());
  return model_->make_cache(capacity);
}

at::Tensor FrozenModel::next_logits(std::span<const std::int64_t> tokens, nn::KeyValueCache& cache) {
  const ops::StreamScope scope(parallel_.device, parallel_.compute->stream());
  const at::NoGradGuard no_gradients;
  runtime_.program().begin_step(schedule::StepKind::evaluate, 1);
  runtime_.program().begin_microbatch(0);
  const models::Batch batch = train::on_device(batch_of(tokens, cache.tokens), parallel_.device);
  const at::Tensor logits = model_->next_logits(batch, {.context = context_, .id = {0}}, cache);
  runtime_.program().end_microbatch(0);
  runtime_.program().end_step();
  runtime_.finish(runtime_.pending());
  return logits.cpu();
}

}  // namespace tessera::serve
