#include "tessera/settings/model_flops.h"

#include "tessera/predict/dry_step.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::settings {

double model_flops(const TrainConfig& config, const models::ModelConfig& model, schedule::StepKind kind) {
  TrainConfig alone = config;  // a configuration with one rank, which computes all flops
  alone.ranks = alone.tp = alone.gtp = alone.dp = alone.etp = alone.ep = alone.egtp = 1;
  alone.dead.clear(), alone.idle.clear(), alone.tp_spares.clear(), alone.reduced_batch.clear();
  alone.sequence_parallel.reset();
  alone.reduce_order = ReduceOrder::sequential;
  alone.ranks_per_node = 0;
  predict::DryOptions options = dry_options(alone, model, {});
  options.kind = kind;
  double flops = 0;
  for (const std::vector<ops::Work>& works : dry_step(options).work)
    for (const ops::Work& work : works) flops += work.flops;
  return flops * static_cast<double>(config.global_batch) / static_cast<double>(config.micro_batch);
}

}  // namespace tessera::settings
