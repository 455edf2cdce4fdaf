#include "tessera/settings/trainer_options.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/predict/model_flops.h"
#include "tessera/predict/recompute_choice.h"
#include "tessera/settings/checks/tp_tokens.h"
#include "tessera/settings/other_mesh.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve.h"

namespace tessera::settings {
namespace {

bool has_one_microbatch(const TrainConfig& config) {
  return !has_unused_places(config) && config.global_batch == config.micro_batch * config.gtp * config.dp;
}

runtime::RuntimeOptions runtime_options(const TrainConfig& config) {
  runtime::RuntimeOptions options;
  options.gather_budget = config.gather_budget.value;
  options.reduce_budget = config.reduce_budget.value;
  options.coalesce_bytes = config.coalesce.value;
  options.zero = config.zero;
  options.one_microbatch = has_one_microbatch(config);
  options.pushes = config.pushes;
  options.wire = wire_policy(config);
  options.products = product_policy(config);
  options.wire_backward = backward_policy(config);
  options.nodes = ranks_of_node(config);
  options.replay = {.poison = config.debug_poison, .delay_seed = static_cast<std::uint64_t>(config.debug_delays)};
  return options;
}

nn::ProductOptions product_options(const TrainConfig& config) {
  nn::ProductOptions options = config.products;
  options.tp_chunks = tp_chunks_of(config);
  options.tp_overlap = overlaps_tp(config);
  return options;
}

nn::DropoutOptions dropout_options(const TrainConfig& config) {
  nn::DropoutOptions options = config.dropout;
  options.seed = config.seed;
  return options;
}

models::BuildModel builder_of(const TrainConfig& config, const models::ModelConfig& model) {
  const models::ModelOptions options{.max_positions = config.seq_len,
                                     .embedding = embedding_reads(config),
                                     .router_loss = config.router,
                                     .expert_capacity = config.expert_capacity};
  return [&model, options](nn::Context& context) { return model.build(context, options); };
}

// Returns StepOptions::expert_room. Only GPUs limit the memory for rows of experts.
double expert_room_of(const TrainConfig& config) {
  return config.has_experts && config.backend == Backend::nccl ? config.expert_room : 0;
}

}  // namespace

shard::ParameterTypes types_of(const TrainConfig& config) {
  return {.model = config.dtype, .accumulator = quant::accumulator_of(config.dtype), .wire = *config.grad_wire};
}

nn::MeshDegrees mesh_of(const TrainConfig& config) {
  nn::MeshDegrees degrees{
      .tp = static_cast<int>(config.tp), .gtp = static_cast<int>(config.gtp), .dp = static_cast<int>(config.dp)};
  if (has_unused_places(config)) degrees.unused = places_of(inactive_slots(config), config);
  if (config.has_experts)
    degrees.experts = {
        .etp = static_cast<int>(config.etp), .ep = static_cast<int>(config.ep), .egtp = static_cast<int>(config.egtp)};
  return degrees;
}

std::vector<nn::Recompute> recompute_choice(const TrainConfig& config, const models::ModelConfig& model) {
  const std::int64_t blocks = model.sizes().num_layers;
  const auto every = [&](nn::Recompute policy) {
    return std::vector<nn::Recompute>(static_cast<std::size_t>(blocks), policy);
  };
  switch (config.recompute) {
    case RecomputeSetting::none:
      return every(nn::Recompute::none);
    case RecomputeSetting::selective:
      return every(nn::Recompute::selective);
    case RecomputeSetting::full:
      return every(nn::Recompute::full);
    case RecomputeSetting::automatic:
      break;
  }
  try {
    return predict::recompute_within(dry_options(config, model, {}), blocks, config.activation_budget.value);
  } catch (const InputError& error) {
    throw InputError("--activation-budget: {}", error.what());
  }
}

double model_flops(const TrainConfig& config, const models::ModelConfig& model, schedule::StepKind kind) {
  predict::DryOptions options = dry_options(alone(config), model, {});  // one rank computes all flops
  options.kind = kind;
  return predict::microbatch_flops(options) * static_cast<double>(config.global_batch) /
         static_cast<double>(config.micro_batch);
}

models::StepOptions step_options(const TrainConfig& config, const models::ModelConfig& model,
                                 nn::BlockRecompute recompute) {
  // Calls that may throw come before the aggregate, because g++ 12 destroys the members of a nested aggregate twice if
  // a later initializer throws.
  shard::RankLayout layout = nn::rank_layout(mesh_of(config));
  runtime::RuntimeOptions runtime = runtime_options(config);
  const nn::ProductOptions products = product_options(config);
  return {.build = builder_of(config, model),
          .layout = std::move(layout),
          .types = types_of(config),
          .sequence_parallel = splits_tokens(config),
          .recompute = std::move(recompute),
          .runtime = std::move(runtime),
          .products = products,
          .dropout = dropout_options(config),
          .expert_bias_rate = std::max(config.expert_bias_rate, 0.0),
          .expert_room = expert_room_of(config)};
}

predict::DryOptions dry_options(const TrainConfig& config, const models::ModelConfig& model,
                                nn::BlockRecompute recompute) {
  models::StepOptions step = step_options(config, model, std::move(recompute));
  const int last = static_cast<int>(std::max(config.tp, config.etp * config.ep)) - 1;
  const int rank = std::min(last, step.layout.mesh.world_size() - 1);
  return {.step = std::move(step), .rank = rank, .sequences = config.micro_batch, .seq_len = config.seq_len};
}

train::TrainerOptions trainer_options(const TrainConfig& config, const models::ModelConfig& model) {
  models::StepOptions step = step_options(config, model, nn::BlockRecompute(recompute_choice(config, model)));
  return {.step = std::move(step), .adamw = config.adamw, .clip = config.clip, .graph = config.cuda_graph};
}

}  // namespace tessera::settings
