#include "tessera/plan/replica_plans.h"

#include <algorithm>

#include "tessera/predict/recompute_choice.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::plan {
namespace {

// Returns the recompute policies of a mesh: those of the kind that must recompute the most.
std::vector<nn::Recompute> mesh_recomputation(const ReplicaKinds& kinds, const StepPlanRequest& request) {
  std::vector<nn::Recompute> most;
  for (const ReplicaKind& kind : kinds.kinds)
    most = std::max(most, settings::recompute_choice(request_of(kind, kinds, request, 1).run));
  return most;
}

// Adds `times` times the difference between `longer` and `shorter` to `longer`.
void add_microbatches(const ReplicaStep& shorter, double times, ReplicaStep& longer) {
  add_microbatches(shorter.seconds, times, longer.seconds);
  for (std::size_t i = 0; i < longer.ranks.size(); ++i)
    longer.ranks[i].compute_seconds += times * (longer.ranks[i].compute_seconds - shorter.ranks.at(i).compute_seconds);
}

ReplicaStep replica_step(const StepPlan& step) {
  return {.seconds = seconds_of(step), .memory = step.memory, .ranks = step.ranks};
}

}  // namespace

ReplicaPlans::ReplicaPlans(StepPlanRequest request) : request_(std::move(request)) {
  const settings::ResolvedRun& run = request_.run;
  if (run->recompute == settings::RecomputeSetting::automatic)
    request_.recompute = mesh_recomputation(replica_kinds(run.mesh().unused, run.degrees()), request_);
}

ReplicaPlans::Key ReplicaPlans::key_of(const ReplicaKinds& kinds, const ReplicaKind& kind) {
  return {.shape = {.unused = kind.unused, .any_reduced = kinds.any_reduced()},
          .replicas = kinds.replicas,
          .updating = kinds.updating,
          .updates = kind.updates,
          .all_reduces = kinds.all_reduces};
}

StepPlanRequest ReplicaPlans::request(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches) {
  return request_of(kind, kinds, request_, microbatches);
}

const std::vector<predict::PlannedParameter>& ReplicaPlans::parameters(const ReplicaKinds& kinds,
                                                                       const ReplicaKind& kind) {
  const Key key = key_of(kinds, kind);
  if (const auto known = parameters_.find(key); known != parameters_.end()) return known->second;
  const predict::ReplicaOfMesh whole = *request(kinds, kind, 1).replica;
  return parameters_.emplace(key, prepared(kinds, kind).replica->in(whole)).first->second;
}

PreparedStep& ReplicaPlans::prepared(const ReplicaKinds& kinds, const ReplicaKind& kind) {
  const Shape shape = key_of(kinds, kind).shape;
  if (const auto known = prepared_.find(shape); known != prepared_.end()) return known->second;
  return prepared_.emplace(shape, prepare_step(request(kinds, kind, 1))).first->second;
}

StepPlan ReplicaPlans::plan_of(const ReplicaKinds& kinds, const ReplicaKind& kind, const StepPlanRequest& request,
                               const schedule::Schedule* schedule) {
  std::vector<predict::PlannedParameter> own = parameters(kinds, kind);
  for (const ReplicaKind& other : kinds.kinds) raise_replicas(own, parameters(kinds, other));
  PreparedStep& step = prepared(kinds, kind);
  step.parameters = std::move(own);
  return plan_step(request, step, schedule);
}

StepPlan ReplicaPlans::plan(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches) {
  return plan_of(kinds, kind, request(kinds, kind, microbatches));
}

const schedule::Schedule& ReplicaPlans::schedule_of(const ReplicaKind& kind, bool any_reduced,
                                                    std::int64_t microbatches, bool has_arenas_of_more) {
  const std::tuple key(Shape{.unused = kind.unused, .any_reduced = any_reduced}, microbatches, has_arenas_of_more);
  if (const auto known = schedules_.find(key); known != schedules_.end()) return known->second;
  const auto replicas = request_.run.degrees().dp;
  ReplicaKinds equal{.kinds = {kind}, .replicas = replicas, .updating = replicas};
  equal.kinds.front().updates = true;
  equal.kinds.front().is_reduced = any_reduced;
  equal.kinds.front().replicas.resize(static_cast<std::size_t>(replicas));
  equal.all_reduces = kind.unused.empty();
  StepPlanRequest request = request_of(equal.kinds.front(), equal, request_, microbatches);
  if (has_arenas_of_more) {
    const schedule::Schedule& more = schedule_of(kind, any_reduced, microbatches + 1, false);
    request.gather_budget = more.gather_arena;
    request.reduce_budget = more.reduce_arena + more.scratch;
  }
  return schedules_.emplace(key, plan_of(equal, equal.kinds.front(), request).schedule).first->second;
}

ReplicaStep ReplicaPlans::predicted(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches,
                                    bool has_arenas_of_more) {
  const schedule::Schedule& schedule = schedule_of(kind, kinds.any_reduced(), microbatches, has_arenas_of_more);
  return replica_step(plan_of(kinds, kind, request(kinds, kind, microbatches), &schedule));
}

ReplicaStep ReplicaPlans::planned(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches) {
  if (microbatches < kPlannedMicrobatches) return predicted(kinds, kind, microbatches, false);
  const Key key = key_of(kinds, kind);
  auto known = extrapolations_.find(key);
  if (known == extrapolations_.end()) {
    const Extrapolation made{.longer = predicted(kinds, kind, kPlannedMicrobatches, false),
                             .shorter = predicted(kinds, kind, kPlannedMicrobatches - 1, true)};
    known = extrapolations_.emplace(key, made).first;
  }
  ReplicaStep result = known->second.longer;
  add_microbatches(known->second.shorter, static_cast<double>(microbatches - kPlannedMicrobatches), result);
  return result;
}

const ReplicaStep& ReplicaPlans::step(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches) {
  const std::pair key(key_of(kinds, kind), microbatches);
  const auto known = steps_.find(key);
  if (known != steps_.end()) return known->second;
  return steps_.emplace(key, planned(kinds, kind, microbatches)).first->second;
}

}  // namespace tessera::plan
