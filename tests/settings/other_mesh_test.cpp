#include "tessera/settings/other_mesh.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

TrainConfig run_on_many_ranks() {
  TrainConfig config{.ranks = 24, .tp = 3, .gtp = 4, .dp = 2, .micro_batch = 5, .global_batch = 240};
  config.sequence_parallel = true;
  config.tp_chunks = "7";
  config.tp_overlap = true;
  config.products.tp_wire = quant::Format::fp8;
  config.reduce_order = ReduceOrder::hierarchical;
  config.ranks_per_node = 6;
  return config;
}

TEST(OtherMesh, KeepsSettingsOfDividedTokensWhereTpRanksDivideTokens) {
  const TrainConfig config =
      on(run_on_many_ranks(), {.tp = 2, .gtp = 5, .dp = 1, .experts = nn::ExpertDegrees{.etp = 2, .ep = 1, .egtp = 5}});
  EXPECT_EQ(std::tuple(config.tp, config.gtp, config.dp, config.ranks), std::tuple(2, 5, 1, 10));
  EXPECT_EQ(std::tuple(config.etp, config.ep, config.egtp), std::tuple(2, 1, 5));
  EXPECT_EQ(config.tp_chunks, "7");
  EXPECT_EQ(config.tp_overlap, true);
  EXPECT_EQ(config.products.tp_wire, quant::Format::fp8);
}

TEST(OtherMesh, OneRankHasNoSettingsOfSeveralRanks) {
  TrainConfig several = run_on_many_ranks();
  several.dead[{.dp = 1, .gtp = 3}] = {0};
  several.reduced_batch = "auto";
  const TrainConfig config = alone(several);
  EXPECT_EQ(std::tuple(config.tp, config.gtp, config.dp, config.ranks), std::tuple(1, 1, 1, 1));
  EXPECT_EQ(config.global_batch, config.micro_batch);
  EXPECT_TRUE(config.dead.empty() && config.reduced_batch.empty());
  EXPECT_EQ(std::tuple(config.tp_chunks, config.tp_overlap, config.sequence_parallel),
            std::tuple("auto", std::optional<bool>(), std::optional<bool>()));
  EXPECT_EQ(config.products.tp_wire, quant::Format::bf16);
  EXPECT_EQ(std::tuple(config.reduce_order, config.ranks_per_node), std::tuple(ReduceOrder::sequential, 0));
}

ResolvedRun whole_run() {
  TrainConfig config = run_on_many_ranks();
  config.products.tp_wire = quant::Format::bf16;
  config.reduce_order = ReduceOrder::sequential, config.ranks_per_node = 0;
  config.given = {"global_batch"};
  return run_of(config);
}

TEST(ResolvedRun, OnAnotherMeshHasItsRanksAndPlaces) {
  const ResolvedRun whole = whole_run();
  EXPECT_EQ(std::tuple(whole.mesh().ranks, whole.has_unused_places()), std::tuple(24, false));
  const UnusedPlaces unused{.dead = {{{.dp = 1, .gtp = 3}, {0}}}, .idle = {{{.dp = 0, .gtp = 0}, {1, 2}}}};
  const ResolvedRun smaller = whole.without(unused);
  EXPECT_EQ(std::tuple(smaller.mesh().ranks, smaller->ranks), std::tuple(21, 21));
  EXPECT_EQ(smaller.degrees().unused, (std::vector<int>{1, 2, 21}));
  EXPECT_EQ(smaller.mesh().text, "21 ranks (tp 3 x gtp 4 x dp 2, dead dp1.gtp3:0, idle dp0.gtp0:1,2)");
  UnusedPlaces spares = unused;
  spares.dead[{.dp = 0, .gtp = 1}] = {0, 1};
  spares.tp_spares = "auto";  // each group with a dead slot leaves two slots unused
  EXPECT_EQ(whole.without(spares).mesh().ranks, 18);
  EXPECT_EQ(smaller.without({}).mesh().ranks, 24);
  EXPECT_THROW(whole.without({.dead = {{{.dp = 2}, {0}}}}), InputError);
  EXPECT_EQ(whole.on({.tp = 2, .gtp = 5}).mesh().text, "10 ranks (tp 2 x gtp 5 x dp 1)");
  EXPECT_EQ(std::tuple(whole.alone().mesh().ranks, whole.alone().microbatches()), std::tuple(1, 1));
}

TEST(ResolvedRun, AReplicaHasItsPlacesAndItsShareOfTheBatch) {
  const ResolvedRun replica =
      whole_run().without({.dead = {{{.dp = 1}, {0}}}, .tp_spares = "1"}).replica({{{.dp = 0, .gtp = 3}, {2}}}, 30);
  EXPECT_EQ(std::tuple(replica.mesh().ranks, replica.degrees().dp, replica->global_batch), std::tuple(11, 1, 30));
  EXPECT_EQ(replica.degrees().unused, std::vector<int>{11});
}

TEST(OtherMesh, OfAnotherRunHasItsRanksAndPlaces) {
  TrainConfig other = run_on_many_ranks();
  other.ranks = 23, other.dead = {{{.dp = 1, .gtp = 3}, {0}}}, other.reduced_batch = "3";
  const TrainConfig config = on_mesh_of({}, other);
  EXPECT_EQ(std::tuple(config.tp, config.gtp, config.dp, config.ranks), std::tuple(3, 4, 2, 23));
  EXPECT_EQ(config.dead, other.dead);
  EXPECT_EQ(config.reduced_batch, "3");
}

TEST(ResolvedRun, AMicrobatchOfEveryReaderIsAStep) {
  const ResolvedRun run = whole_run().with_microbatches(3);
  EXPECT_EQ(std::tuple(run.microbatches(), run->global_batch), std::tuple(3, 3 * 5 * 4 * 2));
}

}  // namespace
}  // namespace tessera::settings
