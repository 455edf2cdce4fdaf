#include "tessera/settings/other_mesh.h"

#include <utility>

#include "tessera/settings/checks/tp_tokens.h"
#include "tessera/settings/places.h"

namespace tessera::settings {

Degrees degrees_in(const TrainConfig& config) {
  return {.tp = config.tp, .gtp = config.gtp, .dp = config.dp, .etp = config.etp, .ep = config.ep, .egtp = config.egtp};
}

TrainConfig on(TrainConfig config, const Degrees& degrees) {
  config.tp = degrees.tp, config.gtp = degrees.gtp, config.dp = degrees.dp;
  config.etp = degrees.etp, config.ep = degrees.ep, config.egtp = degrees.egtp;
  config.ranks = config.tp * config.gtp * config.dp;
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
  return with_microbatches(std::move(config), 1);
}

TrainConfig on_mesh_of(TrainConfig config, const TrainConfig& other) {
  config.ranks = other.ranks, config.tp = other.tp, config.gtp = other.gtp, config.dp = other.dp;
  config.dead = other.dead, config.idle = other.idle;
  config.tp_spares = other.tp_spares, config.reduced_batch = other.reduced_batch;
  return config;
}

TrainConfig without(TrainConfig config, UnusedPlaces unused) {
  config.dead = std::move(unused.dead), config.idle = std::move(unused.idle);
  config.tp_spares = std::move(unused.tp_spares), config.reduced_batch = std::move(unused.reduced_batch);
  config.ranks = config.tp * config.gtp * config.dp - count(inactive_slots(config));
  return config;
}

TrainConfig with_microbatches(TrainConfig config, std::int64_t microbatches) {
  config.global_batch = microbatches * config.micro_batch * config.gtp * config.dp;
  return config;
}

}  // namespace tessera::settings
