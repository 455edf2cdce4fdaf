#include "tessera/plan/continuations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"
#include "tessera/data/sampler.h"

namespace tessera::plan {
namespace {

constexpr double kEqual = 1e-3;  // relative difference of throughputs below which two continuations are equally good

// Returns the replicas with an unused place.
std::set<int> reduced_replicas(const settings::PlaceMap& unused) {
  std::set<int> replicas;
  for (const auto& [group, slots] : unused)
    if (!slots.empty()) replicas.insert(group.dp);
  return replicas;
}

// Returns the live places of every replica with an unused place.
settings::PlaceMap rest_of_replicas(const settings::PlaceMap& unused, const nn::MeshDegrees& degrees) {
  settings::PlaceMap rest;
  for (const int dp : reduced_replicas(unused))
    for (int gtp = 0; gtp < degrees.gtp; ++gtp) {
      const settings::TpGroup group{.dp = dp, .gtp = gtp};
      if (std::vector<int> live = settings::active_slots(unused, group, degrees.tp); !live.empty())
        rest[group] = std::move(live);
    }
  return rest;
}

// Returns the live places of every tp group with an unused place.
settings::PlaceMap rest_of_groups(const settings::PlaceMap& unused, const nn::MeshDegrees& degrees) {
  settings::PlaceMap rest;
  for (const auto& [group, slots] : unused)
    if (std::vector<int> live = settings::active_slots(unused, group, degrees.tp); !slots.empty() && !live.empty())
      rest[group] = std::move(live);
  return rest;
}

settings::PlaceMap idle_of(Continuation continuation, const settings::PlaceMap& unused,
                           const nn::MeshDegrees& degrees) {
  if (continuation == Continuation::drop_replica) return rest_of_replicas(unused, degrees);
  if (continuation == Continuation::drop_gtp_place) return rest_of_groups(unused, degrees);
  return {};
}

bool chooses_shares(Continuation continuation) {
  return continuation == Continuation::drop_gtp_place || continuation == Continuation::adopt_with_shares;
}

bool is_affected(const ReplicaKind& kind) {
  return !kind.unused.empty();
}

// A kind's step time with n microbatches: fixed + n * each.
struct Line {
  double fixed = 0, each = 0;
};

class Continuations {
 public:
  Continuations(const settings::ResolvedRun& run, const settings::PlaceMap& unused, ReplicaPlans& plans)
      : run_(run), unused_(unused), plans_(plans) {
    const MeshStep step = mesh_step(run.without({}), plans);
    full_seconds_ = step.seconds;
    full_divisible_ = equal_seconds(step.kinds);
  }

  double full_seconds() const { return full_seconds_; }

  ContinuationResult result(Continuation continuation) {
    const settings::PlaceMap idle = idle_of(continuation, unused_, run_.degrees());
    ContinuationResult result{.continuation = continuation, .refusal = "", .idle = idle, .slowest = "", .memory = {}};
    if (count(unused_) + count(idle) >= run_.degrees().places()) {
      result.refusal = continuation == Continuation::drop_replica ? "every replica has an unused place"
                                                                  : "every tp group has an unused place";
      return result;
    }
    try {
      const MeshStep equal = mesh_step(run_.without({.dead = unused_, .idle = idle}), plans_);
      set(equal, {}, result);
      if (chooses_shares(continuation)) choose_shares(idle, equal.kinds, result);
      const double divisible = chooses_shares(continuation) ? shared_seconds(equal.kinds) : equal_seconds(equal.kinds);
      result.kept_if_divisible = full_divisible_ / divisible;
    } catch (const InputError& error) {  // the formats do not support a smaller tp group
      result.refusal = error.what();
    }
    return result;
  }

 private:
  void set(const MeshStep& step, std::optional<std::int64_t> reduced_batch, ContinuationResult& result) const {
    result.ranks = step.kinds.ranks();
    result.reduced_batch = reduced_batch;
    result.seconds = step.seconds;
    result.kept = full_seconds_ / step.seconds;
    result.slowest = kind_text(step.slowest().kind, run_.degrees());
    result.microbatches = step.slowest().microbatches;
    result.memory = {};
    for (const KindStep& kind : step.by_kind)
      if (kind.step.memory.total() > result.memory.total()) result.memory = kind.step.memory;
  }

  // Tries the shares with which reduced replicas have only whole microbatches. If several shares are equally fast,
  // prefers equal shares, and then the largest share of a reduced replica.
  void choose_shares(const settings::PlaceMap& idle, const ReplicaKinds& kinds, ContinuationResult& result) const {
    std::set<std::int64_t, std::greater<>> shares;
    const std::int64_t equal = base::ceil_div(run_->global_batch, kinds.replicas);
    for (const ReplicaKind& kind : kinds.kinds) {
      const std::int64_t block = run_->micro_batch * static_cast<std::int64_t>(kind.live.size());
      for (std::int64_t share = 0; is_affected(kind) && share < equal; share += block) shares.insert(share);
    }
    for (const std::int64_t share : shares) {
      try {
        const MeshStep step =
            mesh_step(run_.without({.dead = unused_, .idle = idle, .reduced_batch = std::to_string(share)}), plans_);
        if (step.seconds < result.seconds) set(step, share, result);
      } catch (const InputError&) {  // no other replica can compute the rest of the batch
      }
    }
  }

  double microbatches() const {
    return static_cast<double>(run_->global_batch) / static_cast<double>(run_->micro_batch);
  }

  Line line_of(const ReplicaKinds& kinds, const ReplicaKind& kind) const {
    const std::int64_t whole = run_->global_batch / (run_->micro_batch * run_->mesh.gtp * run_->mesh.dp);
    const std::int64_t few = std::max<std::int64_t>(1, whole);
    const double seconds = plans_.step(kinds, kind, few).seconds.total();
    const double each = plans_.step(kinds, kind, few + 1).seconds.total() - seconds;
    return {.fixed = seconds - static_cast<double>(few) * each, .each = each};
  }

  // Returns the duration of a step in which all replicas have equal shares.
  double equal_seconds(const ReplicaKinds& kinds) const {
    double seconds = 0;
    for (const ReplicaKind& kind : kinds.kinds) {
      const Line line = line_of(kinds, kind);
      const double own = microbatches() / kinds.replicas / static_cast<double>(kind.live.size());
      seconds = std::max(seconds, line.fixed + own * line.each);
    }
    return seconds;
  }

  // Returns the duration of a step in which all replicas compute equally long. Replicas of one kind have equal shares.
  // The duration is found by bisection.
  double shared_seconds(const ReplicaKinds& kinds) const {
    std::vector<Line> lines;
    for (const ReplicaKind& kind : kinds.kinds) lines.push_back(line_of(kinds, kind));
    const auto computed_in = [&](double seconds) {
      double sum = 0;
      for (std::size_t i = 0; i < lines.size(); ++i) {
        const ReplicaKind& kind = kinds.kinds[i];
        const double readers = static_cast<double>(kind.replicas.size()) * static_cast<double>(kind.live.size());
        sum += readers * std::max(0.0, (seconds - lines[i].fixed) / lines[i].each);
      }
      return sum;
    };
    double below = 0, enough = equal_seconds(kinds);
    for (int i = 0; i < 100; ++i) {
      const double middle = (below + enough) / 2;
      (computed_in(middle) < microbatches() ? below : enough) = middle;
    }
    return enough;
  }

  const settings::ResolvedRun& run_;
  const settings::PlaceMap& unused_;
  ReplicaPlans& plans_;
  double full_seconds_ = 0, full_divisible_ = 0;
};

bool is_better_continuation(const ContinuationResult& a, const ContinuationResult& b) {
  // Both continuations then have the same settings.
  if (a.continuation == Continuation::adopt_with_shares && b.continuation == Continuation::adopt && !a.reduced_batch)
    return false;
  if (std::abs(a.kept - b.kept) > kEqual) return a.kept > b.kept;
  return a.kept_if_divisible > b.kept_if_divisible + kEqual;
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string reason_for(const std::vector<ContinuationResult>& results, std::size_t best) {
  const ContinuationResult& first = results[best];
  std::string text = fmt::format("{} keeps {} of the throughput", name_of(first.continuation), percent(first.kept));
  std::vector<std::string> others;
  for (const ContinuationResult& other : results)
    if (other.refusal.empty() && other.continuation != first.continuation)
      others.push_back(fmt::format("{} {}", name_of(other.continuation), percent(other.kept)));
  for (std::size_t i = 0; i < others.size(); ++i) text += (i == 0 ? "; " : ", ") + others[i];
  return text + ".";
}

}  // namespace

std::string_view name_of(Continuation continuation) {
  switch (continuation) {
    case Continuation::drop_replica:
      return "drop the replica";
    case Continuation::drop_gtp_place:
      return "drop the gtp place";
    case Continuation::adopt:
      return "adopt";
    case Continuation::adopt_with_shares:
      return "adopt with shares";
  }
  return "";
}

const KindStep& MeshStep::slowest() const {
  return *std::ranges::max_element(by_kind, {}, [](const KindStep& kind) { return kind.step.seconds.total(); });
}

MeshStep mesh_step(const settings::ResolvedRun& run, ReplicaPlans& plans) {
  MeshStep mesh{.kinds = replica_kinds(run.mesh().unused, run.degrees()), .by_kind = {}};
  const data::BatchShape shape = run.batch();
  const std::vector<std::int64_t> microbatches = data::microbatches_by_replica(shape);
  std::vector<int> live;  // dp coordinates of the replicas of `shape`
  for (const ReplicaKind& kind : mesh.kinds.kinds) live.insert(live.end(), kind.replicas.begin(), kind.replicas.end());
  std::ranges::sort(live);
  for (const ReplicaKind& kind : mesh.kinds.kinds) {
    KindStep own{.kind = kind, .step = {}};
    for (const int dp : kind.replicas) {
      const auto number = static_cast<std::size_t>(std::ranges::lower_bound(live, dp) - live.begin());
      own.sequences = std::max(own.sequences, shape.replicas[number].sequences);
      own.microbatches = std::max(own.microbatches, microbatches[number]);
    }
    own.step = plans.step(mesh.kinds, kind, own.microbatches);
    mesh.seconds = std::max(mesh.seconds, own.step.seconds.total());
    mesh.by_kind.push_back(std::move(own));
  }
  return mesh;
}

ContinuationComparison compare_continuations(const settings::ResolvedRun& run, const settings::PlaceMap& unused,
                                             ReplicaPlans& plans) {
  Continuations continuations(run, unused, plans);
  ContinuationComparison comparison{
      .full_seconds = continuations.full_seconds(), .unused = count(unused), .reason = ""};
  comparison.replicas = run->mesh.dp;
  comparison.reduced_replicas = static_cast<std::int64_t>(reduced_replicas(unused).size());
  for (const Continuation continuation : kContinuations) {
    ContinuationResult result = continuations.result(continuation);
    result.fits = plans.fits(result.memory);
    comparison.results.push_back(std::move(result));
  }
  for (std::size_t i = 0; i < comparison.results.size(); ++i) {
    if (!comparison.results[i].refusal.empty() || !comparison.results[i].fits) continue;
    if (!comparison.best || is_better_continuation(comparison.results[i], comparison.results[*comparison.best]))
      comparison.best = i;
  }
  const bool any =
      std::ranges::any_of(comparison.results, [](const ContinuationResult& result) { return result.refusal.empty(); });
  comparison.reason = comparison.best ? reason_for(comparison.results, *comparison.best)
                      : any           ? "No way fits the memory."
                                      : "No way is possible.";
  return comparison;
}

}  // namespace tessera::plan
