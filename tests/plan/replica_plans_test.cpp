// Tests the plans of replicas with unused places. The plans are compared with dry steps of every rank of a small mesh.
#include "tessera/plan/replica_plans.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tessera/settings/trainer_options.h"
#include "tests/plan/plan_testing.h"

namespace tessera::plan {
namespace {

// No size is divisible by 2 or 3; with 3 tp ranks key/value heads overlap.
models::DecoderConfig uneven_model() {
  models::DecoderConfig model = even_model();
  model.vocab_size = 19, model.hidden_size = 11, model.intermediate_size = 7;
  model.num_heads = 10, model.num_kv_heads = 5, model.head_dim = 4;
  return model;
}

struct UnusedMesh {
  const char *tp, *gtp, *dp, *dead;
  const char* zero = "on";
};

StepPlanRequest request_with(const UnusedMesh& mesh, const models::DecoderConfig& model = uneven_model()) {
  return request_of({{"tp", mesh.tp},
                     {"gtp", mesh.gtp},
                     {"dp", mesh.dp},
                     {"dead", mesh.dead},
                     {"zero", mesh.zero},
                     {"sequence_parallel", std::string(mesh.tp) == "1" ? "off" : "on"},
                     {"dtype", "bf16"},
                     {"global_batch", "12"}},
                    model);
}

const UnusedMesh kUnusedMeshes[] = {
    {"2", "1", "2", "dp0:1"},
    {"3", "2", "3", "dp1.gtp0:0,2;dp2.gtp1:1"},
    {"2", "2", "3", "dp0.gtp0:0;dp0.gtp1:0,1", "off"},
    {"3", "1", "3", "dp0:2;dp2:2"},
    {"1", "3", "3", "dp0.gtp1:0"},
    {"1", "3", "2", "dp0.gtp1:0;dp1.gtp0:0;dp1.gtp2:0", "off"},
    {"2", "2", "2", "dp1.gtp0:0,1", "off"},
    {"1", "2", "2", "dp0.gtp0:0;dp1.gtp1:0", "off"},
    {"2", "2", "3", "dp1.gtp0:0,1;dp1.gtp1:0,1"},
};

// The dry steps of the ranks of the planned replica of a kind, in the mesh with all replicas.
std::vector<predict::DryStep> steps_in_mesh(const StepPlanRequest& request, const ReplicaKind& kind) {
  const settings::PlaceMap unused = request.run.mesh().unused;
  predict::DryOptions options = settings::dry_options(request.run, {});
  int planned = -1;  // dp coordinate
  for (const int dp : kind.replicas) {
    settings::PlaceMap own;
    for (const auto& [group, slots] : unused)
      if (group.dp == dp) own[{.dp = 0, .gtp = group.gtp}] = slots;
    if (own == kind.unused) planned = dp;
  }
  std::vector<predict::DryStep> steps;
  for (int rank = 0; rank < options.step.layout.mesh.world_size(); ++rank) {
    if (options.step.layout.mesh.coordinate(rank, "dp") != planned) continue;
    options.rank = rank;
    steps.push_back(dry_step(options));
  }
  return steps;
}

void expect_equal(const predict::PlannedParameter& planned, const predict::PlannedParameter& in_mesh,
                  const std::string& where) {
  EXPECT_EQ(planned.size.gather, in_mesh.size.gather) << where;
  EXPECT_EQ(planned.size.reduce, in_mesh.size.reduce) << where;
  EXPECT_EQ(planned.size.replicas, in_mesh.size.replicas) << where;
  EXPECT_EQ(planned.size.publish, in_mesh.size.publish) << where;
  EXPECT_EQ(planned.size.gathered, in_mesh.size.gathered) << where;
  EXPECT_EQ(planned.size.staging, in_mesh.size.staging) << where;
  EXPECT_EQ(planned.size.scratch, in_mesh.size.scratch) << where;
  EXPECT_EQ(planned.stored_bytes, in_mesh.stored_bytes) << where;
  EXPECT_EQ(planned.gradient_elements, in_mesh.gradient_elements) << where;
}

TEST(ReplicaPlans, HaveTheBytesOfTheMesh) {
  for (const UnusedMesh& mesh : kUnusedMeshes) {
    const StepPlanRequest request = request_with(mesh);
    const shard::ParameterTypes types = types_of(request.run);
    const ReplicaKinds kinds = replica_kinds(request.run.mesh().unused, request.run.degrees());
    ReplicaPlans plans(request);
    for (const ReplicaKind& kind : kinds.kinds) {
      const StepPlan plan = plans.plan(kinds, kind, 1);
      const std::vector<predict::DryStep> steps = steps_in_mesh(request, kind);
      ASSERT_EQ(static_cast<std::int64_t>(steps.size()), kind.ranks());
      const auto in_mesh = planned_parameters(steps.front(), types);
      ASSERT_EQ(plan.parameters.size(), in_mesh.size());
      for (std::size_t id = 0; id < in_mesh.size(); ++id) {
        const std::string where = in_mesh[id].size.name + " with dead " + mesh.dead + ", " + to_text(kind.unused);
        expect_equal(plan.parameters[id], in_mesh[id], where);
        // A mesh plans the state of the replicas that update it; other replicas have none.
        const bool is_split = kinds.replicas > 1 && request.run->zero && steps.front().parameters[id].sharded;
        EXPECT_EQ(plan.parameters[id].state_elements, is_split && !kind.updates ? 0 : in_mesh[id].state_elements)
            << where;
      }
    }
  }
}

// The ranks of a replica wait for each other at every layer, so each segment lasts as long as on the slowest rank.
TEST(ReplicaPlans, HaveTheTimesOfTheSlowestRanks) {
  for (const UnusedMesh& mesh : kUnusedMeshes) {
    const StepPlanRequest request = request_with(mesh);
    const ReplicaKinds kinds = replica_kinds(request.run.mesh().unused, request.run.degrees());
    ReplicaPlans plans(request);
    for (const ReplicaKind& kind : kinds.kinds) {
      const StepPlan plan = plans.plan(kinds, kind, 2);
      const predict::DryOptions options = settings::dry_options(request.run, {});
      const predict::CostInput input = cost_input_of(request, options);
      std::vector<double> seconds(plan.trace.size());
      std::int64_t activations = 0;
      for (const predict::DryStep& step : steps_in_mesh(request, kind)) {
        const predict::StepCosts costs = event_costs(input, step, step.trace(2), plan.parameters);
        for (std::size_t i = 0; i < seconds.size(); ++i)
          seconds[i] = std::max(seconds[i], costs.costs.segment_seconds.at(i));
        activations = std::max(activations, peak_stashed(step.microbatch));
      }
      const double slowest = std::accumulate(seconds.begin(), seconds.end(), 0.0);
      EXPECT_NEAR(plan.prediction.compute_seconds / slowest, 1, 1e-12) << mesh.dead << ", " << to_text(kind.unused);
      EXPECT_EQ(plan.memory.activations, activations) << mesh.dead << ", " << to_text(kind.unused);
    }
  }
}

TEST(ReplicaPlans, OfAWholeMeshAreItsPlan) {
  for (const char* batch : {"12", "24", "60"}) {
    const StepPlanRequest request = request_of(
        {{"tp", "2"}, {"gtp", "2"}, {"dp", "3"}, {"global_batch", batch}, {"sequence_parallel", "on"}}, even_model());
    const StepPlan mesh = plan_step(request);
    const ReplicaKinds kinds = replica_kinds({}, request.run.degrees());
    ReplicaPlans plans(request);
    const ReplicaStep& step = plans.step(kinds, kinds.kinds.front(), request.run.microbatches());
    EXPECT_NEAR(step.seconds.total() / mesh.prediction.step_seconds, 1,
                request.run.microbatches() <= kPlannedMicrobatches ? 1e-12 : 0.02);
    EXPECT_EQ(step.memory.total(), mesh.memory.total());
  }
}

TEST(ReplicaPlans, AdoptersNeedMoreTimeAndActivations) {
  StepPlanRequest request = request_with(UnusedMesh{"4", "2", "2", "dp0.gtp0:3"}, even_model());
  const ReplicaKinds kinds = replica_kinds(request.run.mesh().unused, request.run.degrees());
  ReplicaPlans plans(request);
  const ReplicaStep& full = plans.step(kinds, kinds.kinds[0], 1);
  const ReplicaStep& reduced = plans.step(kinds, kinds.kinds[1], 1);
  ASSERT_EQ(reduced.ranks.size(), 2u);
  EXPECT_EQ(reduced.ranks[0].group_ranks, 4);
  EXPECT_EQ(reduced.ranks[1].group_ranks, 3);
  EXPECT_GT(reduced.ranks[1].compute_seconds, reduced.ranks[0].compute_seconds);
  EXPECT_GT(reduced.ranks[1].activations, reduced.ranks[0].activations);
  EXPECT_GT(reduced.seconds.total(), full.seconds.total());
  EXPECT_EQ(full.ranks.size(), 1u);
}

}  // namespace
}  // namespace tessera::plan
