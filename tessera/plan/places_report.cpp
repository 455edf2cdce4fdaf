#include "tessera/plan/places_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "tessera/plan/plan_report.h"
#include "tessera/plan/search/search_report.h"
#include "tessera/predict/model_flops.h"
#include "tessera/settings/shares.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/shard/unequal/spread_units.h"

namespace tessera::plan {
namespace {

using nlohmann::ordered_json;

// Characters; the text output omits longer lists of places, which the JSON output contains.
constexpr std::size_t kShownFlags = 200;

double mfu_of_mesh(const StepPlanRequest& request, const MeshStep& mesh) {
  return predict::mfu_of(settings::model_flops(request.run), mesh.seconds, mesh.kinds.ranks(),
                         request.machine.flops.at(request.run->dtype));
}

// The work of the busiest rank, divided by the mean of its tp group.
struct Imbalance {
  double heads = 1, ffn = 1, vocabulary = 1;
};

// Returns the largest imbalance of the tp groups with this number of ranks.
Imbalance imbalance_of(const ReplicaKind& kind, int group_ranks, const StepPlanRequest& request) {
  const settings::TpUnits units = settings::units_of(*request.run.model());
  const int tp = request.run.degrees().tp;
  Imbalance most;
  for (int gtp = 0; gtp < request.run->mesh.gtp; ++gtp) {
    const std::vector<int> slots = settings::active_slots(kind.unused, {.dp = 0, .gtp = gtp}, tp);
    if (static_cast<int>(slots.size()) != group_ranks) continue;
    const auto of = [&](std::int64_t count) { return shard::imbalance(shard::spread_units(count, tp, slots)); };
    most = {.heads = std::max(most.heads, of(units.heads)),
            .ffn = std::max(most.ffn, of(units.ffn)),
            .vocabulary = std::max(most.vocabulary, of(units.vocabulary))};
  }
  return most;
}

ordered_json rank_json(const RankWork& work, const KindStep& kind, const StepPlanRequest& request) {
  const Imbalance imbalance = imbalance_of(kind.kind, work.group_ranks, request);
  return {{"group_ranks", work.group_ranks},
          {"adopt", work.group_ranks < request.run->mesh.tp},
          {"compute_ms", work.compute_seconds * 1e3},
          {"activations_bytes", work.activations},
          {"imbalance", {{"heads", imbalance.heads}, {"ffn", imbalance.ffn}, {"vocabulary", imbalance.vocabulary}}}};
}

ordered_json kind_json(const KindStep& kind, const StepPlanRequest& request) {
  const StepSeconds& s = kind.step.seconds;
  ordered_json ranks = ordered_json::array();
  for (const RankWork& work : kind.step.ranks) ranks.push_back(rank_json(work, kind, request));
  return {{"groups", kind.kind.live},
          {"dp", kind.kind.replicas},
          {"ranks", kind.kind.ranks()},
          {"updates_state", kind.kind.updates},
          {"sequences", kind.sequences},
          {"microbatches", kind.microbatches},
          {"step_ms", s.total() * 1e3},
          {"compute_ms", s.compute * 1e3},
          {"exposed_ms", exposed_json(s)},
          {"memory_bytes", memory_json(kind.step.memory)},
          {"fits", fits(kind.step.memory, request)},
          {"ranks_of_groups", std::move(ranks)}};
}

ordered_json json_of(const ContinuationResult& result) {
  if (!result.refusal.empty()) return {{"way", name_of(result.continuation)}, {"refusal", result.refusal}};
  return {{"way", name_of(result.continuation)},
          {"ranks", result.ranks},
          {"reduced_batch", result.reduced_batch ? ordered_json(*result.reduced_batch) : ordered_json()},
          {"idle", to_text(result.idle)},
          {"step_ms", result.seconds * 1e3},
          {"slowest", result.slowest},
          {"microbatches", result.microbatches},
          {"kept", result.kept},
          {"kept_if_divisible", result.kept_if_divisible},
          {"memory_bytes", memory_json(result.memory)},
          {"fits", result.fits}};
}

ordered_json comparison_of(const ContinuationComparison& comparison) {
  ordered_json ways = ordered_json::array();
  for (const ContinuationResult& result : comparison.results) ways.push_back(json_of(result));
  return {{"unused", comparison.unused},
          {"affected_replicas", comparison.reduced_replicas},
          {"replicas", comparison.replicas},
          {"full_step_ms", comparison.full_seconds * 1e3},
          {"ways", std::move(ways)},
          {"recommended",
           comparison.best ? ordered_json(name_of(comparison.results[*comparison.best].continuation)) : ordered_json()},
          {"reason", comparison.reason}};
}

ordered_json mesh_json_of(const settings::ResolvedRun& run, std::int64_t ranks) {
  return {{"ranks", ranks},
          {"tp", run->mesh.tp},
          {"gtp", run->mesh.gtp},
          {"dp", run->mesh.dp},
          {"dead", to_text(run->mesh.unused.dead)},
          {"idle", to_text(run->mesh.unused.idle)},
          {"tp_spares", run->mesh.unused.tp_spares},
          {"reduced_batch", run->mesh.unused.reduced_batch}};
}

std::string gigabytes(std::int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e9);
}

std::string kind_rows(const KindStep& kind, const StepPlanRequest& request) {
  const StepSeconds& s = kind.step.seconds;
  const MemoryUse& m = kind.step.memory;
  std::string text =
      fmt::format("{:<34} {:>8} {:>6} {:>9} {:>12} {:>9.1f} {:>9.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>7} {:>4}\n",
                  kind_text(kind.kind, request.run.degrees()), kind.kind.replicas.size(), kind.kind.ranks(),
                  kind.sequences, kind.microbatches, s.total() * 1e3, s.compute * 1e3, s.gathers * 1e3,
                  s.gradients * 1e3, s.activations * 1e3, gigabytes(m.total()), fits(m, request) ? "yes" : "no");
  if (!kind.kind.is_reduced) return text;
  for (const RankWork& work : kind.step.ranks) {
    const Imbalance imbalance = imbalance_of(kind.kind, work.group_ranks, request);
    const std::string adopted =
        work.group_ranks < request.run->mesh.tp
            ? fmt::format("; most work over mean: heads {:.2f}, feed-forward {:.2f}, vocabulary {:.2f}",
                          imbalance.heads, imbalance.ffn, imbalance.vocabulary)
            : "";
    text += fmt::format("  tp groups of {} ranks: compute {:.1f} ms, activations {} GB{}\n", work.group_ranks,
                        work.compute_seconds * 1e3, gigabytes(work.activations), adopted);
  }
  return text;
}

std::string row_of(const ContinuationResult& result) {
  if (!result.refusal.empty())
    return fmt::format("{:<20} not possible: {}\n", name_of(result.continuation), result.refusal);
  return fmt::format("{:<20} {:>7} {:>8} {:>9.1f} {:>7.1f} {:>10.1f} {:>7} {:>4}  {} ({} microbatches)\n",
                     name_of(result.continuation), result.ranks,
                     result.reduced_batch ? std::to_string(*result.reduced_batch) : "equal", result.seconds * 1e3,
                     100 * result.kept, 100 * result.kept_if_divisible, gigabytes(result.memory.total()),
                     result.fits ? "yes" : "no", result.slowest, result.microbatches);
}

std::string table_text(const ContinuationComparison& comparison) {
  std::string text = fmt::format(
      "{:<20} {:>7} {:>8} {:>9} {:>18} {:>7} {:>4}  {}\n{:<20} {:>7} {:>8} {:>9} {:>7} {:>10} {:>7} {:>4}\n", "", "",
      "reduced", "", "kept, %", "", "", "slowest", "way", "ranks", "batch", "step, ms", "", "divisible", "GB", "fits");
  for (const ContinuationResult& result : comparison.results) text += row_of(result);
  return text + (comparison.best ? "recommended: " : "no recommendation: ") + comparison.reason + "\n";
}

std::string flags_of(const ContinuationResult& result) {
  std::string flags;
  if (const std::string idle = to_text(result.idle); !idle.empty()) flags += fmt::format(" --idle \"{}\"", idle);
  if (result.reduced_batch) flags += fmt::format(" --reduced-batch {}", *result.reduced_batch);
  if (flags.empty()) return "";
  if (flags.size() > kShownFlags) return "its flags are long: --json prints them\n";
  return fmt::format("besides the unused places:{}\n", flags);
}

std::string places_head(const StepPlanRequest& request, const MeshStep& mesh) {
  PlanFigures figures{.memory = {},
                      .seconds = mesh.seconds,
                      .mfu = mfu_of_mesh(request, mesh),
                      .microbatches = mesh.slowest().microbatches};
  for (const KindStep& kind : mesh.by_kind)
    if (kind.step.memory.total() > figures.memory.total()) figures.memory = kind.step.memory;
  return head_text(request, figures);
}

// The mean results of a continuation over the draws in which it is possible.
struct Mean {
  Continuation continuation = Continuation::adopt;
  int possible = 0;
  double kept = 0, divisible = 0;
};

std::vector<Mean> means_of(const std::vector<Draw>& drawn) {
  std::vector<Mean> means;
  for (std::size_t i = 0; i < kContinuations.size(); ++i) {
    Mean mean{.continuation = kContinuations.at(i)};
    for (const Draw& draw : drawn) {
      const ContinuationResult& result = draw.comparison.results[i];
      if (!result.refusal.empty()) continue;
      ++mean.possible, mean.kept += result.kept, mean.divisible += result.kept_if_divisible;
    }
    if (mean.possible > 0) mean.kept /= mean.possible, mean.divisible /= mean.possible;
    means.push_back(mean);
  }
  return means;
}

}  // namespace

PlacesPlan plan_places(const StepPlanRequest& request, ReplicaPlans& plans) {
  return {.step = mesh_step(request.run, plans),
          .comparison = compare_continuations(request.run, request.run.mesh().unused, plans)};
}

ordered_json places_json(const StepPlanRequest& request, const PlacesPlan& plan) {
  const settings::ResolvedRun& run = request.run;
  ordered_json kinds = ordered_json::array();
  bool fit = true;
  for (const KindStep& kind : plan.step.by_kind) {
    kinds.push_back(kind_json(kind, request));
    fit = fit && fits(kind.step.memory, request);
  }
  return {{"model", run->model},
          {"machine", request.machine.name},
          {"mesh", mesh_json_of(run, plan.step.kinds.ranks())},
          {"global_batch", run->global_batch},
          {"tokens", run.tokens()},
          {"predicted",
           {{"step_ms", plan.step.seconds * 1e3},
            {"tokens_per_second", static_cast<double>(run.tokens()) / plan.step.seconds},
            {"mfu", mfu_of_mesh(request, plan.step)}}},
          {"fits", fit},
          {"usable_bytes", usable_json(request)},
          {"unmeasured", unmeasured_keys(request)},
          {"kinds", std::move(kinds)},
          {"comparison", comparison_of(plan.comparison)}};
}

std::string places_text(const StepPlanRequest& request, const PlacesPlan& plan) {
  std::string text = places_head(request, plan.step) + "\n" +
                     fmt::format("{:<34} {:>8} {:>6} {:>9} {:>12} {:>9} {:>9} {:>26} {:>7} {:>4}\n", "", "", "", "", "",
                                 "", "", "exposed, ms", "", "") +
                     fmt::format("{:<34} {:>8} {:>6} {:>9} {:>12} {:>9} {:>9} {:>8} {:>8} {:>8} {:>7} {:>4}\n",
                                 "replica: tp groups x ranks", "replicas", "ranks", "sequences", "microbatches",
                                 "step, ms", "compute", "gathers", "gradient", "activat.", "GB", "fits");
  for (const KindStep& kind : plan.step.by_kind) text += kind_rows(kind, request);
  text += "The step is that of the slowest replica, and the memory that of the replica that needs the most.\n";
  const ContinuationComparison& comparison = plan.comparison;
  text +=
      fmt::format("\nways to continue with {} unused places in {} of {} replicas; step of the whole mesh {:.3f} ms\n",
                  comparison.unused, comparison.reduced_replicas, comparison.replicas, comparison.full_seconds * 1e3);
  text += table_text(comparison);
  return comparison.best ? text + flags_of(comparison.results[*comparison.best]) : text;
}

std::vector<Draw> draw_dead_places(const StepPlanRequest& request, const DeadDraws& draws, ReplicaPlans& plans,
                                   const DrawProgress& progress) {
  const nn::MeshDegrees& degrees = request.run.degrees();
  std::vector<Draw> drawn;
  for (int seed = 1; seed <= draws.seeds; ++seed) {
    Draw draw{.seed = static_cast<std::uint64_t>(seed), .dead = {}, .comparison = {}};
    draw.dead = dead_at_random(draws.share, draw.seed, degrees);
    draw.comparison = compare_continuations(request.run, in_order_of_ranks(draw.dead, degrees), plans);
    drawn.push_back(std::move(draw));
    if (progress) progress(drawn.size(), static_cast<std::size_t>(draws.seeds));
  }
  return drawn;
}

ordered_json draws_json(const StepPlanRequest& request, const DeadDraws& draws, const std::vector<Draw>& drawn) {
  const settings::ResolvedRun& run = request.run;
  ordered_json list = ordered_json::array(), means = ordered_json::array();
  for (const Draw& draw : drawn) {
    list.push_back({{"seed", draw.seed}, {"dead", to_text(draw.dead)}});
    list.back().update(comparison_of(draw.comparison));
  }
  for (const Mean& mean : means_of(drawn))
    means.push_back({{"way", name_of(mean.continuation)},
                     {"possible", mean.possible},
                     {"kept", mean.kept},
                     {"kept_if_divisible", mean.divisible}});
  return {{"model", run->model},
          {"machine", request.machine.name},
          {"mesh", mesh_json_of(run, run->mesh.ranks)},
          {"global_batch", run->global_batch},
          {"tokens", run.tokens()},
          {"share", draws.share},
          {"draws", std::move(list)},
          {"mean", std::move(means)}};
}

std::string draws_text(const StepPlanRequest& request, const DeadDraws& draws, const std::vector<Draw>& drawn) {
  const settings::ResolvedRun& run = request.run;
  std::string text =
      fmt::format("{}: {}, {}, {} of machine {}{}\ntraining step: {} sequences of {} tokens, micro-batch {}\n",
                  run->model, models::params_text(*run.model()), name_of(run->dtype), run.mesh().text,
                  request.machine.name, unmeasured_text(request), run->global_batch, run->seq_len, run->micro_batch);
  for (const Draw& draw : drawn) {
    const ContinuationComparison& comparison = draw.comparison;
    text +=
        fmt::format("\nseed {}: {} dead places in {} of {} replicas; step of the whole mesh {:.3f} ms\n", draw.seed,
                    comparison.unused, comparison.reduced_replicas, comparison.replicas, comparison.full_seconds * 1e3);
    text += table_text(comparison);
  }
  text += fmt::format("\nmeans of {} draws with {:g} % of the places dead: kept, and kept if divisible\n", drawn.size(),
                      100 * draws.share);
  for (const Mean& mean : means_of(drawn))
    text += fmt::format(
        "{:<20} {:>6.1f} % {:>6.1f} %{}\n", name_of(mean.continuation), 100 * mean.kept, 100 * mean.divisible,
        mean.possible < static_cast<int>(drawn.size()) ? fmt::format("  possible in {} draws", mean.possible) : "");
  return text;
}

}  // namespace tessera::plan
