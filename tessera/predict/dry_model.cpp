#include "tessera/predict/dry_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace tessera::predict {
namespace {

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

void DryModel::microbatch(int number, bool trains) {
  const at::AutoGradMode gradients(trains);
  const nn::PassState pass{.context = context_, .id = {number}, .random = {.step = trains ? &step_ : nullptr}};
  program_.begin_microbatch(number);
  const nn::Loss loss = model_->forward(dry_batch(sequences_, seq_len_), pass, trains ? 1.0 : 0.0);
  if (trains) loss.objective.backward();
  program_.end_microbatch(number);
}

runtime::UpdateParts DryModel::update_parts() {
  runtime::UpdateParts parts;
  if (scales_.size() > 0) parts.scales = scales_.found();
  if (!moves_biases_) return parts;
  models::RouterBiases biases = model_->router_biases();
  parts.biases = std::move(biases.ids);
  parts.experts = biases.experts;
  return parts;
}

}  // namespace tessera::predict
