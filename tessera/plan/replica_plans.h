// Plans the replicas of meshes with unused places. Each kind of replica is planned once.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/plan/replica_kinds.h"
#include "tessera/plan/search/mesh_search.h"

namespace tessera::plan {

// The predicted step of a replica.
struct ReplicaStep {
  StepSeconds seconds;
  MemoryUse memory;  // memory of the rank that needs the most
  // Here RankWork::compute_seconds is the time of the whole step.
  std::vector<RankWork> ranks;
};

// Plans replicas and keeps the plans for reuse. Meshes with different unused places often have replicas of the same
// kinds. Used by one thread.
class ReplicaPlans {
 public:
  // The global batch of the run is ignored. Its unused places matter only for --recompute auto: all plans recompute the
  // same blocks as the mesh of the run.
  explicit ReplicaPlans(StepPlanRequest request);

  // Returns the step of a replica of the kind. Steps with more than kPlannedMicrobatches microbatches are extrapolated,
  // so they take no longer to plan. The schedule is planned as if all replicas of the mesh were equal to this replica.
  // The bytes that replicas exchange, and the durations of these transfers, are those of the mesh `kinds`. Throws the
  // errors of plan_step. The reference is valid while this object exists.
  const ReplicaStep& step(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches);
  // Returns the plan of the same step. The plan contains every microbatch.
  StepPlan plan(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches);
  // Returns whether a rank has enough memory (step_plan.h).
  bool fits(const MemoryUse& memory) const { return plan::fits(memory, request_); }
  // Returns the request from which plan() makes its plan.
  StepPlanRequest request(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches);

 private:
  struct Shape {
    settings::PlaceMap unused;
    bool any_reduced = false;
    auto operator<=>(const Shape&) const = default;
  };
  struct Key {
    Shape shape;
    int replicas = 0, updating = 0;
    bool updates = false, all_reduces = false;
    auto operator<=>(const Key&) const = default;
  };
  // The steps with kPlannedMicrobatches microbatches and with one microbatch fewer. Both steps have equal arenas.
  struct Extrapolation {
    ReplicaStep longer, shorter;
  };
  static Key key_of(const ReplicaKinds& kinds, const ReplicaKind& kind);
  // Returns the sizes of the parameters in a replica of this kind.
  const std::vector<predict::PlannedParameter>& parameters(const ReplicaKinds& kinds, const ReplicaKind& kind);
  PreparedStep& prepared(const ReplicaKinds& kinds, const ReplicaKind& kind);
  StepPlan plan_of(const ReplicaKinds& kinds, const ReplicaKind& kind, const StepPlanRequest& request,
                   const schedule::Schedule* schedule = nullptr);
  // Returns the schedule of the step. The schedule is planned with the budgets of the request. If `has_arenas_of_more`
  // is true, it is planned with the arenas of a step with one microbatch more.
  const schedule::Schedule& schedule_of(const ReplicaKind& kind, bool any_reduced, std::int64_t microbatches,
                                        bool has_arenas_of_more);
  ReplicaStep predicted(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches,
                        bool has_arenas_of_more);
  ReplicaStep planned(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches);

  StepPlanRequest request_;
  std::map<Shape, PreparedStep> prepared_;  // each plan sets the parameters
  std::map<Key, std::vector<predict::PlannedParameter>> parameters_;
  // The key contains the arguments of schedule_of.
  std::map<std::tuple<Shape, std::int64_t, bool>, schedule::Schedule> schedules_;
  std::map<Key, Extrapolation> extrapolations_;
  std::map<std::pair<Key, std::int64_t>, ReplicaStep> steps_;  // the key contains the number of microbatches
};

}  // namespace tessera::plan
