// Tests the comparison of the ways in which a run can continue after its mesh has lost places.
#include "tessera/plan/continuations.h"

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/plan/places_report.h"
#include "tests/plan/plan_testing.h"

namespace tessera::plan {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 16 heads: tp 4 has 4 each, and the busiest of 3 ranks has 6. Links are so fast that operators decide.
models::DecoderConfig wide_model() {
  models::DecoderConfig model = even_model();
  model.num_heads = 16, model.num_kv_heads = 16, model.head_dim = 8;
  model.hidden_size = 64, model.intermediate_size = 240, model.vocab_size = 64;
  return model;
}

StepPlanRequest wide_request(const std::map<std::string, std::string>& settings) {
  StepPlanRequest request = request_of(settings, wide_model());
  request.machine.within_node = request.machine.between_nodes = {.bytes_per_second = 1e15, .latency_s = 0};
  return request;
}

ContinuationComparison compared(const StepPlanRequest& request) {
  ReplicaPlans plans(request);
  return plan_places(request, plans).comparison;
}

std::vector<double> kept(const ContinuationComparison& comparison, bool is_divisible = false) {
  std::vector<double> shares;
  for (const ContinuationResult& result : comparison.results)
    shares.push_back(is_divisible ? result.kept_if_divisible : result.kept);
  return shares;
}

TEST(FailureWays, KeepEverythingWhenNothingIsDead) {
  for (const auto& [tp, gtp, dp] : {std::tuple{"1", "1", "1"}, {"3", "1", "2"}, {"2", "2", "3"}, {"1", "3", "2"}})
    for (const char* per_reader : {"1", "3", "7"}) {
      const std::int64_t batch = std::stoll(per_reader) * std::stoll(gtp) * std::stoll(dp);
      const StepPlanRequest request =
          request_of({{"tp", tp}, {"gtp", gtp}, {"dp", dp}, {"global_batch", std::to_string(batch)}}, wide_model());
      ReplicaPlans plans(request);
      const ContinuationComparison comparison = compare_continuations(request.run, {}, plans);
      EXPECT_THAT(kept(comparison), ElementsAre(1, 1, 1, 1)) << tp << gtp << dp << " " << per_reader;
      for (const double share : kept(comparison, true)) EXPECT_NEAR(share, 1, 1e-9) << tp << gtp << dp;
      for (const ContinuationResult& result : comparison.results) EXPECT_EQ(result.reduced_batch, std::nullopt);
      const MeshStep step = mesh_step(request.run, plans);
      EXPECT_EQ(step.seconds, comparison.full_seconds);
    }
}

// 8 replicas of 2 tp groups; a step has 12 microbatches. Without one replica the others need 12 * 8 / 7 = 13.7, so 14.
// Without one tp group, 11 microbatches of the replica with one group leave 12.9, so 13, to the others.
TEST(FailureWays, CountWholeMicrobatches) {
  const ContinuationComparison comparison =
      compared(wide_request({{"tp", "4"}, {"gtp", "2"}, {"dp", "8"}, {"global_batch", "192"}, {"dead", "dp3.gtp1:0"}}));
  EXPECT_EQ(comparison.unused, 1);
  EXPECT_EQ(comparison.reduced_replicas, 1);
  ASSERT_EQ(comparison.results.size(), kContinuations.size());
  const ContinuationResult &replica = comparison.results[0], &group = comparison.results[1],
                           &adopt = comparison.results[2];
  EXPECT_EQ(replica.ranks, 56);
  EXPECT_EQ(group.ranks, 60);
  EXPECT_EQ(adopt.ranks, 63);
  EXPECT_EQ(replica.microbatches, 14);
  EXPECT_EQ(group.microbatches, 13);
  EXPECT_EQ(adopt.microbatches, 12);
  EXPECT_EQ(to_text(group.idle), "dp3.gtp1:1,2,3");
  EXPECT_EQ(to_text(replica.idle), "dp3.gtp0:0,1,2,3;dp3.gtp1:1,2,3");
  // Operators alone: almost proportional to microbatches, apart from the optimizer's work.
  EXPECT_NEAR(replica.kept, 12.0 / 14, 0.02);
  EXPECT_NEAR(group.kept, 12.0 / 13, 0.02);
  EXPECT_NEAR(replica.kept_if_divisible, 7.0 / 8, 0.02);
  EXPECT_NEAR(group.kept_if_divisible, 15.0 / 16, 0.02);
  EXPECT_LT(adopt.kept, 0.9) << "the busiest rank has 6 heads instead of 4";
}

TEST(FailureWays, SharesAreThoseOfTheFastestStep) {
  const StepPlanRequest request =
      wide_request({{"tp", "4"}, {"gtp", "2"}, {"dp", "8"}, {"global_batch", "192"}, {"dead", "dp3.gtp1:0"}});
  const ContinuationComparison comparison = compared(request);
  const ContinuationResult& adopt = comparison.results[2];
  const ContinuationResult& shares = comparison.results[3];
  EXPECT_EQ(adopt.reduced_batch, std::nullopt);
  ASSERT_TRUE(shares.reduced_batch.has_value());
  EXPECT_GT(shares.kept, adopt.kept);
  EXPECT_GT(shares.kept_if_divisible, adopt.kept_if_divisible);
  EXPECT_EQ(comparison.results.at(comparison.best.value()).continuation, Continuation::adopt_with_shares);
  EXPECT_THAT(comparison.reason, HasSubstr("adopt with shares keeps"));
  // Checks that no other share is faster.
  ReplicaPlans plans(request);
  for (std::int64_t share = 0; share <= 24; ++share) {
    const MeshStep step = mesh_step(
        request.run.without({.dead = request.run->mesh.unused.dead, .reduced_batch = std::to_string(share)}), plans);
    EXPECT_GE(step.seconds, shares.seconds) << share;
    if (share == *shares.reduced_batch) {
      EXPECT_EQ(step.seconds, shares.seconds);
    }
  }
}

TEST(FailureWays, ThatLeaveNothingAreRefused) {
  const ContinuationComparison comparison =
      compared(wide_request({{"tp", "4"}, {"gtp", "1"}, {"dp", "2"}, {"global_batch", "8"}, {"dead", "dp0:1;dp1:2"}}));
  EXPECT_EQ(comparison.results[0].refusal, "every replica has an unused place");
  EXPECT_EQ(comparison.results[1].refusal, "every tp group has an unused place");
  EXPECT_EQ(comparison.results[2].refusal, "");
  EXPECT_EQ(comparison.best, std::size_t{2}) << "without other replicas, shares are equal";
}

TEST(FailureWays, OnlyWaysThatFitTheMemoryAreRecommended) {
  StepPlanRequest request =
      wide_request({{"tp", "4"}, {"gtp", "2"}, {"dp", "8"}, {"global_batch", "192"}, {"dead", "dp3.gtp1:0"}});
  request.machine.memory_bytes = 1;
  const ContinuationComparison none = compared(request);
  EXPECT_EQ(none.reason, "No way fits the memory.");
  EXPECT_EQ(none.best, std::nullopt);
  const std::int64_t adopt = none.results[3].memory.total(), replica = none.results[0].memory.total();
  ASSERT_GT(adopt, replica);
  request.machine.memory_bytes = (adopt + replica) / 2;
  const ContinuationComparison some = compared(request);
  EXPECT_FALSE(some.results[3].fits);
  EXPECT_TRUE(some.results[0].fits);
  EXPECT_EQ(some.results.at(some.best.value()).continuation, Continuation::drop_replica);
}

// The mesh of the settings has the shares of the settings; the comparison has its own.
TEST(PlacesReport, ListsKindsAndWays) {
  const StepPlanRequest request = wide_request({{"tp", "4"},
                                                {"gtp", "2"},
                                                {"dp", "4"},
                                                {"global_batch", "96"},
                                                {"dead", "dp3.gtp1:0"},
                                                {"reduced_batch", "12"}});
  ReplicaPlans plans(request);
  const PlacesPlan plan = plan_places(request, plans);
  const ordered_json report = places_json(request, plan);
  EXPECT_EQ(report["mesh"]["ranks"], 31);
  EXPECT_EQ(report["mesh"]["dead"], "dp3.gtp1:0");
  ASSERT_EQ(report["kinds"].size(), 2u);
  const ordered_json &full = report["kinds"][0], &reduced = report["kinds"][1];
  EXPECT_EQ(full["dp"], ordered_json({0, 1, 2}));
  EXPECT_EQ(full["sequences"], 28);
  EXPECT_EQ(full["microbatches"], 14);
  EXPECT_EQ(reduced["sequences"], 12);
  EXPECT_EQ(reduced["microbatches"], 6);
  EXPECT_EQ(reduced["groups"], ordered_json({4, 3}));
  EXPECT_EQ(reduced["ranks_of_groups"][1]["adopt"], true);
  // 16 heads over 3 ranks: 6, 5, 5; 240 columns and 64 rows: 80 each, and 22, 21, 21.
  EXPECT_NEAR(reduced["ranks_of_groups"][1]["imbalance"]["heads"].get<double>(), 18.0 / 16, 1e-12);
  EXPECT_NEAR(reduced["ranks_of_groups"][1]["imbalance"]["ffn"].get<double>(), 1, 1e-12);
  EXPECT_NEAR(reduced["ranks_of_groups"][1]["imbalance"]["vocabulary"].get<double>(), 66.0 / 64, 1e-12);
  EXPECT_EQ(report["predicted"]["step_ms"], full["step_ms"]);
  EXPECT_EQ(report["comparison"]["ways"].size(), 4u);
  EXPECT_EQ(report["comparison"]["recommended"],
            std::string(name_of(plan.comparison.results[*plan.comparison.best].continuation)));
  const std::string text = places_text(request, plan);
  for (const char* words :
       {"1 x 4 + 1 x 3 of 2 x 4 ranks", "tp groups of 3 ranks: compute", "heads 1.12",
        "ways to continue with 1 unused places in 1 of 4 replicas", "recommended: ", "that of the slowest replica"})
    EXPECT_THAT(text, HasSubstr(words));
}

// Replicas are planned by kind, so a mesh of 32768 places takes no longer than a small one.
TEST(PlacesReport, DrawsPlacesOfALargeMesh) {
  const StepPlanRequest request = wide_request({{"tp", "4"}, {"gtp", "8"}, {"dp", "1024"}, {"global_batch", "16384"}});
  ReplicaPlans plans(request);
  const DeadDraws draws{.share = 0.001, .seeds = 2};
  const std::vector<Draw> drawn = draw_dead_places(request, draws, plans);
  const ordered_json report = draws_json(request, draws, drawn);
  ASSERT_EQ(report["draws"].size(), 2u);
  EXPECT_EQ(report["draws"][0]["unused"], 33);
  EXPECT_EQ(count(settings::parse_slots(report["draws"][0]["dead"].get<std::string>(), "--dead")), 33);
  EXPECT_NE(report["draws"][0]["dead"], report["draws"][1]["dead"]);
  ASSERT_EQ(report["mean"].size(), 4u);
  double mean = 0;
  for (const Draw& draw : drawn) mean += draw.comparison.results[2].kept / 2;
  EXPECT_DOUBLE_EQ(report["mean"][2]["kept"].get<double>(), mean);
  // 33 of 8192 tp groups do not work.
  EXPECT_NEAR(report["mean"][1]["kept_if_divisible"].get<double>(), 1 - 33.0 / 8192, 1e-3);
  EXPECT_THAT(draws_text(request, draws, drawn), HasSubstr("means of 2 draws with 0.1 % of the places dead"));
}

}  // namespace
}  // namespace tessera::plan
