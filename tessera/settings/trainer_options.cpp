#include "tessera/settings/trainer_options.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/predict/model_flops.h"
#include "tessera/predict/recompute_choice.h"
#include "tessera/settings/resolve/tp_tokens.h"

namespace tessera::settings {
namespace {

runtime::RuntimeOptions runtime_options(const ResolvedRun& run) {
  const TrainConfig& config = run.stored();
  runtime::RuntimeOptions options;
  options.gather_budget = config.gather_budget.value;
  options.reduce_budget = config.reduce_budget.value;
  options.coalesce_bytes = config.coalesce.value;
  options.zero = config.zero;
  options.one_microbatch = !run.has_unused_places() && run.microbatches() == 1;
  options.split_masters = config.masters != Masters::fp32;
  options.pushes = config.pushes;
  shard::FormatPolicies formats = policies_of(config);
  options.wire = std::move(formats.wire);
  options.products = std::move(formats.products);
  options.wire_backward = std::move(formats.wire_backward);
  options.nodes = ranks_of_node(config, run.has_experts());
  options.replay = {.poison = config.debug_poison, .delay_seed = static_cast<std::uint64_t>(config.debug_delays)};
  return options;
}

nn::ProductOptions product_options(const ResolvedRun& run) {
  const nn::ProductOptions defaults;
  nn::ProductOptions options = run->products;
  options.hadamard = run->formats.nvfp4_hadamard.value_or(defaults.hadamard);
  options.rounding = run->formats.nvfp4_rounding.value_or(defaults.rounding);
  options.tp_chunks = tp_chunks_of(run.stored());
  options.tp_overlap = run.overlaps_tp();
  return options;
}

models::BuildModel builder_of(const ResolvedRun& run) {
  const models::ModelOptions options{.max_positions = run->seq_len,
                                     .embedding = run.embedding_reads(),
                                     .router_loss = run->router,
                                     .expert_capacity = run->expert_capacity};
  return [model = run.model(), options](const nn::Context& context) { return model->build(context, options); };
}

// Returns StepOptions::expert_room. Only GPUs limit the memory for rows of experts.
double expert_room_of(const ResolvedRun& run) {
  return run.has_experts() && run->backend == Backend::nccl ? run->expert_room : 0;
}

}  // namespace

shard::ParameterTypes types_of(const ResolvedRun& run) {
  return {.model = run->dtype, .accumulator = quant::accumulator_of(run->dtype), .wire = *run->grad_wire};
}

std::vector<nn::Recompute> recompute_choice(const ResolvedRun& run) {
  const std::int64_t blocks = run.model()->sizes().num_layers;
  const auto every = [&](nn::Recompute policy) {
    return std::vector<nn::Recompute>(static_cast<std::size_t>(blocks), policy);
  };
  switch (run->recompute) {
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
    return predict::recompute_within(dry_options(run, {}), blocks, run->activation_budget.value);
  } catch (const InputError& error) {
    throw InputError("--activation-budget: {}", error.what());
  }
}

double model_flops(const ResolvedRun& run, schedule::StepKind kind) {
  predict::DryOptions options = dry_options(run.alone(), {});  // one rank computes all flops
  options.kind = kind;
  return predict::microbatch_flops(options) * static_cast<double>(run->global_batch) /
         static_cast<double>(run->micro_batch);
}

models::StepOptions step_options(const ResolvedRun& run, nn::BlockRecompute recompute) {
  // Calls that may throw come before the aggregate, because g++ 12 destroys the members of a nested aggregate twice if
  // a later initializer throws.
  shard::RankLayout layout = nn::rank_layout(run.degrees());
  runtime::RuntimeOptions runtime = runtime_options(run);
  const nn::ProductOptions products = product_options(run);
  return {.build = builder_of(run),
          .layout = std::move(layout),
          .types = types_of(run),
          .sequence_parallel = run.splits_tokens(),
          .recompute = std::move(recompute),
          .runtime = std::move(runtime),
          .products = products,
          .dropout = run->dropout,
          .seed = run->seed,
          .expert_bias_rate = std::max(run->expert_bias_rate, 0.0),
          .expert_room = expert_room_of(run)};
}

predict::DryOptions dry_options(const ResolvedRun& run, nn::BlockRecompute recompute) {
  models::StepOptions step = step_options(run, std::move(recompute));
  const int last = static_cast<int>(std::max(run->mesh.tp, run->mesh.etp * run->mesh.ep)) - 1;
  const int rank = std::min(last, step.layout.mesh.world_size() - 1);
  return {.step = std::move(step),
          .update = run.update(),
          .rank = rank,
          .sequences = run->micro_batch,
          .seq_len = run->seq_len};
}

std::vector<predict::RuleBytes> update_rules_of(const ResolvedRun& run) {
  std::vector<predict::RuleBytes> rules;
  for (const shard::ParameterSpec& spec : run.model()->parameters({})) {
    const shard::ParameterTypes types = shard::types_of(spec, types_of(run));
    const std::int64_t elements = layout::matrix_shape(spec.dims).elements();
    if (spec.trainable) add_to(rules, run.update()->rule_of(spec.name), {.count = elements, .types = types});
  }
  for (predict::RuleBytes& rule : rules) rule.update = 0;  // depends on the mesh
  return rules;
}

train::TrainerOptions trainer_options(const ResolvedRun& run) {
  models::StepOptions step = step_options(run, nn::BlockRecompute(recompute_choice(run)));
  return {.step = std::move(step), .update = run.update(), .clip = run->clip, .graph = run->cuda_graph};
}

}  // namespace tessera::settings
