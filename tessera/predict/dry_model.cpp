#include "tessera/predict/dry_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/schedule/buckets.h"
#include "tessera/shard/formats/encoded.h"

namespace tessera::predict {
namespace {

using schedule::ParameterId;

models::Batch dry_batch(std::int64_t sequences, std::int64_t seq_len) {
  const at::TensorOptions ids = at::TensorOptions().device(at::kMeta).dtype(at::kLong);
  const std::int64_t tokens = sequences * seq_len;
  models::Batch batch{.tokens = at::empty({tokens}, ids), .targets = at::empty({tokens}, ids)};
  batch.layout = {.batch = sequences, .seq_len = seq_len, .positions = at::empty({tokens}, ids), .cu_seqlens = {}};
  return batch;
}

}  // namespace

DryModel::DryModel(runtime::Program& program, const DryOptions& options)
    : program_(program),
      scales_(options.step.products, program.device()),
      room_{.factor = options.step.expert_room},
      context_(models::make_context(program, options.step, scales_, &room_)),
      model_(options.step.build(context_)),
      sequences_(options.sequences),
      seq_len_(options.seq_len),
      moves_biases_(options.step.expert_bias_rate > 0) {
  scales_.set_known();
}

void DryModel::microbatch(bool trains) {
  const at::AutoGradMode gradients(trains);
  context_.random.step = trains ? &number_ : nullptr;
  program_.begin_microbatch();
  const nn::Loss loss = model_->forward(dry_batch(sequences_, seq_len_), trains ? 1.0 : 0.0);
  if (trains) loss.objective.backward();
  program_.end_microbatch();
}

void DryModel::update(const schedule::Trace& trace, const std::vector<ParameterId>& backward_weights) {
  if (scales_.size() > 0) program_.reduce_amaxes(scales_.found());
  if (const models::RouterBiases biases = model_->router_biases(); moves_biases_ && !biases.ids.empty()) {
    std::vector<std::int64_t> counts(biases.ids.size() * static_cast<std::size_t>(biases.experts));
    program_.reduce_counts(counts);
    program_.publish(biases.ids);
  }
  std::vector<ParameterId> order = schedule::order_of_first_uses(trace, static_cast<int>(backward_weights.size()));
  std::erase_if(order, [&](ParameterId id) { return !program_.parameters().spec(id).trainable; });
  const auto elements = [&](ParameterId id) { return program_.parameters().spec(id).compute.shape.elements(); };
  for (const std::vector<ParameterId>& bucket : schedule::optimizer_buckets(order, elements)) {
    std::vector<ParameterId> cast = bucket;
    for (const ParameterId id : bucket)
      if (const ParameterId backward_weight = backward_weights[static_cast<std::size_t>(id)];
          backward_weight != schedule::kNoParameter)
        cast.push_back(backward_weight);
    std::int64_t matrices = 0;
    bool has_whole = false;
    for (const ParameterId id : cast) {
      const shard::ParameterSpec& spec = program_.parameters().spec(id);
      if (!spec.encoding) continue;
      matrices += shard::matrices_of(spec);
      has_whole = has_whole || shard::has_tensor_scale(*spec.encoding);
    }
    std::vector<float> amaxes(static_cast<std::size_t>(matrices));
    if (has_whole) program_.reduce_amaxes(amaxes);
    program_.publish(bucket);
  }
}

}  // namespace tessera::predict
