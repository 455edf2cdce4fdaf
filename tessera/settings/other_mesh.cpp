#include "tessera/settings/other_mesh.h"

#include <utility>

#include "tessera/settings/checks/tp_tokens.h"

namespace tessera::settings {

nn::MeshDegrees degrees_in(const TrainConfig& config) {
  const auto number = [](std::int64_t degree) { return static_cast<int>(degree); };
  return {
      .tp = number(config.tp),
      .gtp = number(config.gtp),
      .dp = number(config.dp),
      .experts = nn::ExpertDegrees{.etp = number(config.etp), .ep = number(config.ep), .egtp = number(config.egtp)}};
}

TrainConfig on(TrainConfig config, const nn::MeshDegrees& degrees) {
  const nn::ExpertDegrees experts = degrees.experts.value_or(nn::ExpertDegrees());
  config.tp = degrees.tp, config.gtp = degrees.gtp, config.dp = degrees.dp;
  config.etp = experts.etp, config.ep = experts.ep, config.egtp = experts.egtp;
  config.ranks = degrees.places();
  config.dead.clear(), config.idle.clear(), config.tp_spares.clear(), config.reduced_batch.clear();
  if (splits_tokens(config)) return config;
  config.tp_chunks = TrainConfig().tp_chunks;
  config.tp_overlap.reset();
  config.products.tp_wire = quant::Format::bf16;
  return config;
}

TrainConfig alone(TrainConfig config) {
  config = on(std::move(config), {});
  config.sequence_parallel.reset();
  config.reduce_order = ReduceOrder::sequential;
  config.ranks_per_node = 0;
  config.global_batch = config.micro_batch;
  return config;
}

TrainConfig on_mesh_of(TrainConfig config, const TrainConfig& other) {
  config.ranks = other.ranks, config.tp = other.tp, config.gtp = other.gtp, config.dp = other.dp;
  config.dead = other.dead, config.idle = other.idle;
  config.tp_spares = other.tp_spares, config.reduced_batch = other.reduced_batch;
  return config;
}

}  // namespace tessera::settings
