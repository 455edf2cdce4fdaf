#include "tessera/settings/model_flops.h"

#include "tessera/predict/dry_step.h"
#include "tessera/settings/other_mesh.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::settings {

double model_flops(const TrainConfig& config, const models::ModelConfig& model, schedule::StepKind kind) {
  predict::DryOptions options = dry_options(alone(config), model, {});  // one rank computes all flops
  options.kind = kind;
  double flops = 0;
  for (const std::vector<ops::Work>& works : dry_step(options).work)
    for (const ops::Work& work : works) flops += work.flops;
  return flops * static_cast<double>(config.global_batch) / static_cast<double>(config.micro_batch);
}

}  // namespace tessera::settings
