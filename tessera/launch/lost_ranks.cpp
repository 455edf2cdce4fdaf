#include "tessera/launch/lost_ranks.h"
#include "tessera/base/atomic_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/hub/run_directory.h"
#include "tessera/launch/resume_command.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/registry.h"
#include "tessera/rendezvous/rank_text.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve/needs.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/text/parse.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

// Returns the places of the ranks, in rank order.
std::vector<int> active_places(const nn::MeshDegrees& degrees) {
  return mesh::live_places({{"tp", degrees.tp}, {"gtp", degrees.gtp}, {"dp", degrees.dp}}, degrees.unused);
}

void add_place(settings::PlaceMap& slots, int place, const nn::MeshDegrees& degrees) {
  const int tp = degrees.tp, gtp = degrees.gtp;
  std::vector<int>& known = slots[{.dp = place / tp / gtp, .gtp = place / tp % gtp}];
  const auto at = std::ranges::lower_bound(known, place % tp);
  if (at == known.end() || *at != place % tp) known.insert(at, place % tp);
}

settings::PlaceMap dead_with(const settings::ResolvedRun& run, const std::vector<int>& ranks) {
  settings::PlaceMap dead = run->mesh.unused.dead;
  const std::vector<int> active = active_places(run.degrees());
  for (const int rank : ranks) {
    if (rank < 0 || rank >= static_cast<int>(active.size()))
      throw InputError("--lost: got rank {}, expected one below {}, the number of ranks of the run", rank,
                       active.size());
    add_place(dead, active[static_cast<std::size_t>(rank)], run.degrees());
  }
  return dead;
}

// The part of the mesh that becomes unused together with a lost rank.
enum class Extent { place, tp_group, replica };

// Returns the idle places of the run, and the live places that become idle together with the lost ranks.
settings::PlaceMap idle_with(const settings::ResolvedRun& run, const std::vector<int>& ranks,
                             const settings::PlaceMap& dead, Extent extent) {
  settings::PlaceMap idle = run->mesh.unused.idle;
  if (extent == Extent::place) return idle;
  const nn::MeshDegrees& degrees = run.degrees();
  const int size = extent == Extent::tp_group ? degrees.tp : degrees.tp * degrees.gtp;
  const std::vector<int> active = active_places(degrees);
  const std::vector<int> dead_places = settings::places_of(dead, degrees.tp, degrees.gtp);
  for (const int rank : ranks) {
    const int first = active[static_cast<std::size_t>(rank)] / size * size;
    for (int place = first; place < first + size; ++place)
      if (std::ranges::find(dead_places, place) == dead_places.end()) add_place(idle, place, degrees);
  }
  return idle;
}

// Returns --tp-spares, or auto if a tp group has more dead slots than this number.
std::string spares_with(const settings::ResolvedRun& run, const settings::PlaceMap& dead) {
  int spares = 0;
  const std::string& text = run->mesh.unused.tp_spares;
  const bool is_number = std::from_chars(text.data(), text.data() + text.size(), spares).ec == std::errc();
  return is_number && spares < settings::uniform_spares(dead, run.degrees().tp).count ? "auto" : text;
}

// Returns the setting of CUDA_VISIBLE_DEVICES for the remaining ranks, such as "CUDA_VISIBLE_DEVICES=0,2 ". If the
// program starts the ranks itself, it assigns the visible devices to ranks in order, or according to their places
// (launch.cpp).
std::string devices_text(const settings::ResolvedRun& before, const settings::ResolvedRun& after,
                         const CommandPlace& place) {
  if (before->backend != settings::Backend::nccl || !place.launch.is_self_started) return "";
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= place.visible.size() && !place.visible.empty();) {
    const std::size_t end = std::min(place.visible.find(',', at), place.visible.size());
    names.push_back(place.visible.substr(at, end - at));
    at = end + 1;
  }
  const std::vector<int> old = active_places(before.degrees()), remaining = active_places(after.degrees());
  const bool by_place = before.has_unused_places() && place.devices == before.degrees().places();
  std::vector<std::string> used;
  for (std::size_t rank = 0; rank < old.size(); ++rank) {
    if (std::ranges::find(remaining, old[rank]) == remaining.end()) continue;
    const std::size_t device = by_place ? static_cast<std::size_t>(old[rank]) : rank;
    used.push_back(device < names.size() ? names[device] : std::to_string(device));
  }
  return fmt::format("CUDA_VISIBLE_DEVICES={} ", fmt::join(used, ","));
}

// Returns the launch of the smaller run. On GPUs, a launcher that started a process for each place starts the same
// number of processes again, because each process keeps its GPU.
rendezvous::Launch launch_of(const settings::ResolvedRun& after, rendezvous::Launch launch) {
  if (after->backend != settings::Backend::nccl || launch.size != after.degrees().places())
    launch.size = static_cast<int>(after->mesh.ranks);
  return launch;
}

// Returns the settings that the checkpoint stores. If it stores none, or cannot be read, a resumed run takes all
// settings from the command line and its defaults.
settings::TrainConfig stored_settings(const fs::path& checkpoint) {
  settings::TrainConfig stored;
  try {
    const nlohmann::json state = checkpoint::load_manifest(checkpoint::resolve_checkpoint(checkpoint)).state;
    if (state.is_object() && state.contains("config"))
      settings::apply_json(stored, state["config"], checkpoint.string());
  } catch (const InputError&) {
    return {};
  }
  return stored;
}

// Returns the settings of the run that a resumed run would otherwise take from the stored settings, with other values.
std::set<std::string> changed_settings(const settings::TrainConfig& stored, const settings::TrainConfig& run) {
  std::set<std::string> changed;
  for (const settings::Setting& setting : settings::settings()) {
    const bool is_kept =
        setting.on_resume == settings::OnResume::kept || setting.on_resume == settings::OnResume::fixed;
    if (is_kept && settings::value_of(stored, setting) != settings::value_of(run, setting) &&
        !settings::is_without_meaning(run, setting))
      changed.insert(std::string(setting.name));
  }
  return changed;
}

nlohmann::ordered_json json_of(const settings::PlaceMap& slots) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [group, named] : slots) json[fmt::format("dp{}.gtp{}", group.dp, group.gtp)] = named;
  return json;
}

}  // namespace

settings::ResolvedRun without_ranks(const settings::ResolvedRun& run, const std::vector<int>& ranks) {
  const settings::PlaceMap dead = dead_with(run, ranks);
  const std::string spares = spares_with(run, dead);
  std::optional<InputError> refusal;
  for (const Extent extent : {Extent::place, Extent::tp_group, Extent::replica})
    for (const std::string& shares : {run->mesh.unused.reduced_batch, std::string("auto")}) {
      try {
        settings::TrainConfig smaller =
            run.without({.dead = dead,
                         .idle = idle_with(run, ranks, dead, extent),
                         .tp_spares = spares,
                         .reduced_batch = run->mesh.unused.reduced_batch.empty() ? "" : shares})
                .stored();
        smaller.cuda_graph = false;
        if (smaller.reduce_order == settings::ReduceOrder::hierarchical)
          smaller.reduce_order = settings::ReduceOrder::sequential, smaller.ranks_per_node = 0;
        return settings::resolve(std::move(smaller), run.model(), settings::Use::train);
      } catch (const InputError& error) {
        if (!refusal) refusal = error;
      }
    }
  throw InputError(*refusal);
}

LostRanks lost_ranks(const settings::ResolvedRun& run, const std::vector<int>& ranks, const CommandPlace& place,
                     const fs::path& started_from) {
  LostRanks lost{.ranks = ranks, .dead = dead_with(run, ranks)};
  ResumeChanges changes;
  if (const auto latest = checkpoint::latest_checkpoint(hub::RunDirectory(run->out).checkpoints()))
    lost.checkpoint = latest->path.string();
  else if (!started_from.empty())
    lost.checkpoint = changes.from = started_from.string();
  try {
    lost.run = without_ranks(run, ranks);
  } catch (const InputError& error) {
    lost.reason = error.what();
    return lost;
  }
  changes.kept =
      changed_settings(lost.checkpoint.empty() ? run.stored() : stored_settings(lost.checkpoint), lost.run->stored());
  changes.before = devices_text(run, *lost.run, place);
  const rendezvous::Launch launch = launch_of(*lost.run, place.launch);
  lost.command = resume_command(*lost.run, place.program, launch, &changes);
  if (calls_launcher(launch)) lost.launcher = launch.launcher;
  return lost;
}

std::string lost_ranks_text(const LostRanks& lost) {
  const bool is_one = lost.ranks.size() == 1;
  return fmt::format("tessera: {} {} {} ended during the run; dead places: {}\n{}", is_one ? "rank" : "ranks",
                     rendezvous::rank_list(lost.ranks), is_one ? "has" : "have", to_text(lost.dead),
                     continuation_text(lost));
}

std::string continuation_text(const LostRanks& lost) {
  if (!lost.run)
    return fmt::format("tessera: the run cannot continue without {}: {}\n", lost.ranks.size() == 1 ? "it" : "them",
                       lost.reason);
  return fmt::format("tessera: to continue {} with {} {}{}:\n  {}\n",
                     lost.checkpoint.empty() ? "from step 0 (no checkpoint is complete)" : "from " + lost.checkpoint,
                     lost.run->mesh().ranks, lost.run->mesh().ranks == 1 ? "rank" : "ranks",
                     lost.launcher.empty() ? "" : fmt::format(" (add the other options of {})", lost.launcher),
                     lost.command);
}

void write_lost_ranks(const LostRanks& lost, const fs::path& out) {
  nlohmann::ordered_json json = {{"lost_ranks", lost.ranks}, {"dead", json_of(lost.dead)}};
  if (lost.run) {
    json["idle"] = json_of((*lost.run)->mesh.unused.idle);
    json["ranks"] = lost.run->mesh().ranks;
    json["command"] = lost.command;
  } else {
    json["reason"] = lost.reason;
  }
  json["checkpoint"] = lost.checkpoint;
  base::write_json_atomically(hub::RunDirectory(out).resume_without(), json);
}

LostRanks lost_ranks_of_run(const fs::path& run, const std::vector<int>& ranks, std::string_view program) {
  const fs::path file = hub::RunDirectory(run).config();
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored))
    throw InputError("{}: not found, expected the folder of a run with config.json", file.string());
  const nlohmann::json state = base::read_json_file(file);
  if (!state.is_object() || !state.contains("config") || !state.contains("model"))
    throw InputError("{}: expected the settings and the model of a run ('config', 'model')", file.string());
  settings::TrainConfig config;
  settings::apply_json(config, state["config"], file.string());
  settings::check_mesh_limits(config.mesh);
  config.out = run.string();
  for (const settings::Setting& setting : settings::settings())
    if (settings::value_of(config, setting) == settings::value_of(settings::TrainConfig(), setting))
      config.given.erase(std::string(setting.name));
  const models::ModelConfigPtr model = models::parse_model_config(state["model"], file.string() + ": model");
  CommandPlace place{.program = std::string(program), .launch = {}};
  if (config.backend == settings::Backend::mpi) place.launch.launcher = "mpirun";
  const std::string from = config.resume == "latest" ? "" : config.resume;
  return lost_ranks(settings::resolve(std::move(config), model, settings::Use::train), ranks, place, from);
}

}  // namespace tessera::launch
