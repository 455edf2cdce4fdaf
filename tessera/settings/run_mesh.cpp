#include "tessera/settings/run_mesh.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve/batch.h"
#include "tessera/settings/resolve/recompute_checks.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/shares.h"

namespace tessera::settings {
namespace {

constexpr std::int64_t kMaxLocalRanks = 1024;  // the ranks are threads of one process

void check_local_ranks(const TrainConfig& config) {
  if (config.backend == Backend::local && config.ranks > kMaxLocalRanks)
    throw InputError("--ranks: got {} with --backend local, expected at most {} (threads of one process)", config.ranks,
                     kMaxLocalRanks);
}

void check_reduce_order(const TrainConfig& config) {
  const bool in_nodes = config.reduce_order == ReduceOrder::hierarchical;
  if (in_nodes && config.ranks_per_node == 0)
    throw InputError("--reduce-order hierarchical needs --ranks-per-node, a multiple of --tp {}", config.tp);
  if (in_nodes && config.ranks_per_node % config.tp != 0)
    throw InputError("--ranks-per-node: got {} with --reduce-order hierarchical, expected a multiple of --tp {}",
                     config.ranks_per_node, config.tp);
  if (!in_nodes && config.ranks_per_node != 0)
    throw InputError("--ranks-per-node: got {} without --reduce-order hierarchical", config.ranks_per_node);
}

// Describes the source of the number of ranks: --ranks, or the started processes.
std::string ranks_text(const TrainConfig& config, bool is_given) {
  if (is_given) return fmt::format("--ranks: got {}", config.ranks);
  return started_text(config.ranks);
}

// Throws InputError for settings that a mesh with unused places does not support. Sets ranks and dp.
TrainConfig resolve_unused_places(TrainConfig config, std::optional<std::int64_t> world_size) {
  const std::int64_t part = config.tp * config.gtp;
  if (config.dp == 0) config.dp = nominal_replicas(config);
  check_mesh_limits(config);
  const PlaceMap unused = inactive_slots(config);
  const std::int64_t nominal = part * config.dp, active = nominal - count(unused);
  const std::int64_t ranks = world_size ? *world_size : config.ranks;
  if (ranks > 0 && ranks != active && ranks != nominal)
    throw InputError("{}, expected {} active ranks or all {} places of tp {} x gtp {} x dp {} (--dead {})",
                     world_size ? started_text(ranks) : fmt::format("--ranks: got {}", ranks), active, nominal,
                     config.tp, config.gtp, config.dp, to_text(unused));
  if (config.reduce_order == ReduceOrder::hierarchical)
    throw InputError("--reduce-order: got hierarchical with --dead {}, expected sequential", to_text(unused));
  if (config.etp * config.ep * config.egtp > 1)
    throw InputError("{}: got {} with --etp {} --ep {} --egtp {}, expected 1: experts need a whole mesh",
                     unused_flag(config), to_text(unused), config.etp, config.ep, config.egtp);
  if (config.cuda_graph)
    throw InputError(
        "--cuda-graph: got on with --dead {}, expected off: replicas of different sizes launch different "
        "graphs",
        to_text(unused));
  config.ranks = active;
  return config;
}

std::string unused_text(const TrainConfig& config) {
  std::string text;
  if (!config.dead.empty()) text += ", dead " + to_text(config.dead);
  if (!config.idle.empty()) text += ", idle " + to_text(config.idle);
  if (!config.tp_spares.empty()) text += ", tp spares " + config.tp_spares;
  if (!config.reduced_batch.empty()) text += ", reduced batch " + config.reduced_batch;
  return text;
}

}  // namespace

std::string_view unused_flag(const TrainConfig& config) {
  return config.dead.empty() ? "--idle" : "--dead";
}

bool has_unused_places(const TrainConfig& config) {
  return !config.dead.empty() || !config.idle.empty() || !config.tp_spares.empty();
}

TrainConfig resolve_ranks(TrainConfig config, std::optional<std::int64_t> world_size) {
  check_mesh_limits(config);
  if (has_unused_places(config)) {
    config = resolve_unused_places(std::move(config), world_size);
    check_local_ranks(config);
    check_reduce_order(config);
    check_recompute(config);
    batch_shape(config, {});
    return config;
  }
  if (!config.reduced_batch.empty())
    throw InputError("--reduced-batch: got {} without --dead or --idle, expected unused places",
                     base::excerpt(config.reduced_batch));
  const std::int64_t part = config.tp * config.gtp;
  if (world_size && config.ranks > 0 && config.ranks != *world_size)
    throw InputError("--ranks: got {}, expected {}: {}{}", config.ranks, *world_size, started_text(*world_size),
                     start_text(config.backend, config.ranks));
  const bool is_given = config.ranks > 0;
  if (world_size) config.ranks = *world_size;
  if (config.ranks == 0) config.ranks = part * (config.dp > 0 ? config.dp : 1);
  if (config.dp == 0 && config.ranks % part == 0) config.dp = config.ranks / part;
  if (config.dp == 0)
    throw InputError("{}, expected a multiple of --tp {} * --gtp {} = {}{}", ranks_text(config, is_given), config.tp,
                     config.gtp, part, start_text(config.backend, part * ((config.ranks + part - 1) / part)));
  if (part * config.dp != config.ranks)
    throw InputError("{}, expected --tp {} * --gtp {} * --dp {} = {}{}", ranks_text(config, is_given), config.tp,
                     config.gtp, config.dp, part * config.dp, start_text(config.backend, part * config.dp));
  check_local_ranks(config);
  check_reduce_order(config);
  check_recompute(config);
  check_global_batch(config);
  return config;
}

std::vector<int> ranks_of_node(const TrainConfig& config, bool has_experts) {
  const bool in_nodes = config.reduce_order == ReduceOrder::hierarchical;
  const auto places = [&](std::int64_t compute) -> int {
    const std::int64_t in_replica = config.tp * config.gtp / compute, in_node = config.ranks_per_node / compute;
    return in_nodes ? static_cast<int>(std::clamp<std::int64_t>(in_node, 1, in_replica)) : 1;
  };
  std::vector<int> nodes{places(config.tp)};
  if (has_experts) nodes.push_back(places(config.etp * config.ep));
  return nodes;
}

RunMesh mesh_of(const TrainConfig& config, bool has_experts) {
  RunMesh mesh{.degrees = degrees_in(config), .ranks = config.ranks, .text = mesh_text(config, has_experts)};
  if (!has_experts) mesh.degrees.experts.reset();
  if (has_unused_places(config)) mesh.unused = inactive_slots(config);
  mesh.degrees.unused = places_of(mesh.unused, config.tp, config.gtp);
  return mesh;
}

std::string started_text(std::int64_t processes) {
  return processes == 1 ? "1 process was started" : fmt::format("{} processes were started", processes);
}

std::string start_text(Backend backend, std::int64_t ranks) {
  return backend == Backend::mpi ? fmt::format(" (mpirun -n {} tessera train ...)", ranks) : "";
}

std::int64_t nominal_replicas(const TrainConfig& config) {
  const std::int64_t part = config.tp * config.gtp;
  std::int64_t replicas = std::max<std::int64_t>(1, (config.ranks + part - 1) / part);
  for (const PlaceMap& places : {config.dead, config.idle})
    for (const auto& [group, slots] : places) replicas = std::max<std::int64_t>(replicas, group.dp + 1);
  return replicas;
}

std::string mesh_text(const TrainConfig& config, bool has_experts) {
  const std::string ranks = fmt::format("{} {}", config.ranks, config.ranks == 1 ? "rank" : "ranks");
  if (!has_experts && config.etp * config.ep * config.egtp == 1)
    return fmt::format("{} (tp {} x gtp {} x dp {}{})", ranks, config.tp, config.gtp, config.dp, unused_text(config));
  return fmt::format("{} (tp {} x gtp {} x dp {}; experts etp {} x ep {} x egtp {} x edp {} x dp {})", ranks, config.tp,
                     config.gtp, config.dp, config.etp, config.ep, config.egtp,
                     config.tp * config.gtp / (config.etp * config.ep * config.egtp), config.dp);
}

std::vector<std::pair<std::string, int>> axes_of(const nn::MeshDegrees& degrees) {
  std::vector<std::pair<std::string, int>> axes{{"tp", degrees.tp}, {"gtp", degrees.gtp}, {"dp", degrees.dp}};
  if (const auto& experts = degrees.experts)
    axes.insert(axes.end(),
                {{"etp", experts->etp}, {"ep", experts->ep}, {"egtp", experts->egtp}, {"edp", degrees.edp()}});
  return axes;
}

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
