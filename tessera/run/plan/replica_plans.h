// Plans of the replicas of meshes with unused places, each kind once.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/run/plan/mesh_search.h"
#include "tessera/run/plan/replica_kinds.h"

namespace tessera::run {

// The step of a replica.
struct ReplicaStep {
  StepSeconds seconds;
  MemoryUse memory;             // of the rank that needs most
  std::vector<RankWork> ranks;  // compute_seconds: of the whole step
};

// Plans replicas and keeps the plans, because meshes with other unused places have replicas of the same kinds. Used by
// one thread.
class ReplicaPlans {
 public:
  // `request`: with the resolved config of a mesh. The global batch is not used. The unused places only count for
  // --recompute auto: every plan recomputes the blocks that this mesh recomputes.
  explicit ReplicaPlans(StepPlanRequest request);

  // Returns the step of a replica of the kind. A step with many microbatches takes no longer to plan than one with few
  // (kPlannedMicrobatches). The schedule is that of a mesh in which all replicas of the request's dp are equal to this
  // replica; the bytes between replicas, and their times, are those of `kinds`. Throws the errors of plan_step. The
  // reference is valid as long as the object.
  const ReplicaStep& step(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches);
  // Returns the plan of this step, with every microbatch.
  StepPlan plan(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches);
  const predict::Machine& machine() const { return request_.machine; }
  // Returns the request whose plan this is.
  StepPlanRequest request(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches);

 private:
  struct Shape {
    PlaceMap unused;
    bool any_reduced = false;
    auto operator<=>(const Shape&) const = default;
  };
  struct Key {
    Shape shape;
    int replicas = 0, updating = 0;
    bool updates = false, all_reduces = false;
    auto operator<=>(const Key&) const = default;
  };
  // Steps of kPlannedMicrobatches microbatches and of one fewer, with equal arenas.
  struct Extrapolation {
    ReplicaStep longer, shorter;
  };
  static Key key_of(const ReplicaKinds& kinds, const ReplicaKind& kind);
  // Returns the sizes of the parameters in the replica, as if its mesh had no other kinds.
  const std::vector<predict::PlannedParameter>& parameters(const ReplicaKinds& kinds, const ReplicaKind& kind);
  PreparedStep& prepared(const ReplicaKinds& kinds, const ReplicaKind& kind);
  StepPlan plan_of(const ReplicaKinds& kinds, const ReplicaKind& kind, const StepPlanRequest& request,
                   const schedule::Schedule* schedule = nullptr);
  // Returns the schedule of the step with the budgets of the request, or with those of a step of one microbatch more.
  const schedule::Schedule& schedule_of(const ReplicaKind& kind, bool any_reduced, std::int64_t microbatches,
                                        bool has_arenas_of_more);
  ReplicaStep predicted(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches,
                        bool has_arenas_of_more);
  ReplicaStep planned(const ReplicaKinds& kinds, const ReplicaKind& kind, std::int64_t microbatches);

  StepPlanRequest request_;
  std::map<Shape, PreparedStep> prepared_;  // each plan sets the parameters
  std::map<Key, std::vector<predict::PlannedParameter>> parameters_;
  std::map<std::tuple<Shape, std::int64_t, bool>, schedule::Schedule> schedules_;  // by the arguments of schedule_of
  std::map<Key, Extrapolation> extrapolations_;
  std::map<std::pair<Key, std::int64_t>, ReplicaStep> steps_;  // by number of microbatches
};

}  // namespace tessera::run
