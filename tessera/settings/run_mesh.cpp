#include "tessera/settings/run_mesh.h"

#include <algorithm>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve/batch.h"
#include "tessera/settings/resolve/recompute_checks.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/resolve/tp_tokens.h"

namespace tessera::settings {
namespace {

constexpr std::int64_t kMaxLocalRanks = 1024;  // the ranks are threads of one process

void check_local_ranks(const TrainConfig& config) {
  if (config.backend == Backend::local && config.mesh.ranks > kMaxLocalRanks)
    throw InputError("--ranks: got {} with --backend local, expected at most {} (threads of one process)",
                     config.mesh.ranks, kMaxLocalRanks);
}

void check_reduce_order(const TrainConfig& config) {
  const bool in_nodes = config.reduce_order == ReduceOrder::hierarchical;
  if (in_nodes && config.ranks_per_node == 0)
    throw InputError("--reduce-order hierarchical needs --ranks-per-node, a multiple of --tp {}", config.mesh.tp);
  if (in_nodes && config.ranks_per_node % config.mesh.tp != 0)
    throw InputError("--ranks-per-node: got {} with --reduce-order hierarchical, expected a multiple of --tp {}",
                     config.ranks_per_node, config.mesh.tp);
  if (!in_nodes && config.ranks_per_node != 0)
    throw InputError("--ranks-per-node: got {} without --reduce-order hierarchical", config.ranks_per_node);
}

// Describes the source of the number of ranks: --ranks, or the started processes.
std::string ranks_text(std::int64_t ranks, bool is_given) {
  return is_given ? fmt::format("--ranks: got {}", ranks) : started_text(ranks);
}

// Sets ranks and dp of a mesh with unused places. Throws InputError for settings that such a mesh does not support.
void resolve_active_ranks(TrainConfig& config, std::optional<std::int64_t> world_size) {
  MeshSettings& mesh = config.mesh;
  if (mesh.dp == 0) mesh.dp = nominal_replicas(mesh);
  check_mesh_limits(mesh);
  const PlaceMap unused = inactive_slots(mesh);
  const std::int64_t nominal = mesh.places(), active = nominal - count(unused);
  const std::int64_t ranks = world_size ? *world_size : mesh.ranks;
  if (ranks > 0 && ranks != active && ranks != nominal)
    throw InputError("{}, expected {} active ranks or all {} places of tp {} x gtp {} x dp {} (--dead {})",
                     world_size ? started_text(ranks) : fmt::format("--ranks: got {}", ranks), active, nominal, mesh.tp,
                     mesh.gtp, mesh.dp, to_text(unused));
  if (config.reduce_order == ReduceOrder::hierarchical)
    throw InputError("--reduce-order: got hierarchical with --dead {}, expected sequential", to_text(unused));
  if (mesh.etp * mesh.ep * mesh.egtp > 1)
    throw InputError("{}: got {} with --etp {} --ep {} --egtp {}, expected 1: experts need a whole mesh",
                     unused_flag(mesh.unused), to_text(unused), mesh.etp, mesh.ep, mesh.egtp);
  if (config.cuda_graph)
    throw InputError(
        "--cuda-graph: got on with --dead {}, expected off: replicas of different sizes launch different "
        "graphs",
        to_text(unused));
  mesh.ranks = active;
}

// Sets ranks and dp of a mesh without unused places, so that tp * gtp * dp == ranks.
void resolve_all_ranks(TrainConfig& config, std::optional<std::int64_t> world_size) {
  MeshSettings& mesh = config.mesh;
  if (!mesh.unused.reduced_batch.empty())
    throw InputError("--reduced-batch: got {} without --dead or --idle, expected unused places",
                     base::excerpt(mesh.unused.reduced_batch));
  const std::int64_t part = mesh.replica_places();
  if (world_size && mesh.ranks > 0 && mesh.ranks != *world_size)
    throw InputError("--ranks: got {}, expected {}: {}{}", mesh.ranks, *world_size, started_text(*world_size),
                     start_text(config.backend, mesh.ranks));
  const bool is_given = mesh.ranks > 0;
  if (world_size) mesh.ranks = *world_size;
  if (mesh.ranks == 0) mesh.ranks = part * (mesh.dp > 0 ? mesh.dp : 1);
  if (mesh.dp == 0 && mesh.ranks % part == 0) mesh.dp = mesh.ranks / part;
  if (mesh.dp == 0)
    throw InputError("{}, expected a multiple of --tp {} * --gtp {} = {}{}", ranks_text(mesh.ranks, is_given), mesh.tp,
                     mesh.gtp, part, start_text(config.backend, part * base::ceil_div(mesh.ranks, part)));
  if (part * mesh.dp != mesh.ranks)
    throw InputError("{}, expected --tp {} * --gtp {} * --dp {} = {}{}", ranks_text(mesh.ranks, is_given), mesh.tp,
                     mesh.gtp, mesh.dp, part * mesh.dp, start_text(config.backend, part * mesh.dp));
}

std::string unused_text(const UnusedPlaces& unused) {
  std::string text;
  if (!unused.dead.empty()) text += ", dead " + to_text(unused.dead);
  if (!unused.idle.empty()) text += ", idle " + to_text(unused.idle);
  if (!unused.tp_spares.empty()) text += ", tp spares " + unused.tp_spares;
  if (!unused.reduced_batch.empty()) text += ", reduced batch " + unused.reduced_batch;
  return text;
}

}  // namespace

std::string_view unused_flag(const UnusedPlaces& unused) {
  return unused.dead.empty() ? "--idle" : "--dead";
}

TrainConfig resolve_ranks(TrainConfig config, std::optional<std::int64_t> world_size) {
  check_mesh_limits(config.mesh);
  if (config.mesh.has_unused_places())
    resolve_active_ranks(config, world_size);
  else
    resolve_all_ranks(config, world_size);
  check_local_ranks(config);
  check_reduce_order(config);
  check_recompute(config);
  check_global_batch(config);
  return config;
}

std::vector<int> ranks_of_node(const TrainConfig& config, bool has_experts) {
  const MeshSettings& mesh = config.mesh;
  const bool in_nodes = config.reduce_order == ReduceOrder::hierarchical;
  const auto places = [&](std::int64_t compute) -> int {
    const std::int64_t in_replica = mesh.replica_places() / compute, in_node = config.ranks_per_node / compute;
    return in_nodes ? static_cast<int>(std::clamp<std::int64_t>(in_node, 1, in_replica)) : 1;
  };
  std::vector<int> nodes{places(mesh.tp)};
  if (has_experts) nodes.push_back(places(mesh.etp * mesh.ep));
  return nodes;
}

RunMesh mesh_of(const MeshSettings& mesh, bool has_experts) {
  RunMesh run{.degrees = degrees_in(mesh), .ranks = mesh.ranks, .text = mesh_text(mesh, has_experts)};
  if (!has_experts) run.degrees.experts.reset();
  if (mesh.has_unused_places()) run.unused = inactive_slots(mesh);
  run.degrees.unused = places_of(run.unused, mesh.tp, mesh.gtp);
  return run;
}

std::string started_text(std::int64_t processes) {
  return processes == 1 ? "1 process was started" : fmt::format("{} processes were started", processes);
}

std::string start_text(Backend backend, std::int64_t ranks) {
  return backend == Backend::mpi ? fmt::format(" (mpirun -n {} tessera train ...)", ranks) : "";
}

std::int64_t nominal_replicas(const MeshSettings& mesh) {
  const std::int64_t part = mesh.replica_places();
  std::int64_t replicas = std::max<std::int64_t>(1, base::ceil_div(mesh.ranks, part));
  for (const PlaceMap& places : {mesh.unused.dead, mesh.unused.idle})
    for (const auto& [group, slots] : places) replicas = std::max<std::int64_t>(replicas, group.dp + 1);
  return replicas;
}

std::string mesh_text(const MeshSettings& mesh, bool has_experts) {
  const std::string ranks = fmt::format("{} {}", mesh.ranks, mesh.ranks == 1 ? "rank" : "ranks");
  if (!has_experts && mesh.etp * mesh.ep * mesh.egtp == 1)
    return fmt::format("{} (tp {} x gtp {} x dp {}{})", ranks, mesh.tp, mesh.gtp, mesh.dp, unused_text(mesh.unused));
  return fmt::format("{} (tp {} x gtp {} x dp {}; experts etp {} x ep {} x egtp {} x edp {} x dp {})", ranks, mesh.tp,
                     mesh.gtp, mesh.dp, mesh.etp, mesh.ep, mesh.egtp,
                     mesh.replica_places() / (mesh.etp * mesh.ep * mesh.egtp), mesh.dp);
}

std::vector<std::pair<std::string, int>> axes_of(const nn::MeshDegrees& degrees) {
  std::vector<std::pair<std::string, int>> axes{{"tp", degrees.tp}, {"gtp", degrees.gtp}, {"dp", degrees.dp}};
  if (const auto& experts = degrees.experts)
    axes.insert(axes.end(),
                {{"etp", experts->etp}, {"ep", experts->ep}, {"egtp", experts->egtp}, {"edp", degrees.edp()}});
  return axes;
}

nn::MeshDegrees degrees_in(const MeshSettings& mesh) {
  const auto number = [](std::int64_t degree) { return static_cast<int>(degree); };
  return {.tp = number(mesh.tp),
          .gtp = number(mesh.gtp),
          .dp = number(mesh.dp),
          .experts = nn::ExpertDegrees{.etp = number(mesh.etp), .ep = number(mesh.ep), .egtp = number(mesh.egtp)}};
}

TrainConfig on(TrainConfig config, const nn::MeshDegrees& degrees) {
  const nn::ExpertDegrees experts = degrees.experts.value_or(nn::ExpertDegrees());
  config.mesh = {.ranks = degrees.places(),
                 .tp = degrees.tp,
                 .gtp = degrees.gtp,
                 .dp = degrees.dp,
                 .etp = experts.etp,
                 .ep = experts.ep,
                 .egtp = experts.egtp};
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

}  // namespace tessera::settings
