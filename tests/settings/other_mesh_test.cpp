#include "tessera/settings/other_mesh.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

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
  const TrainConfig config = on(run_on_many_ranks(), {.tp = 2, .gtp = 5, .dp = 3, .etp = 2, .ep = 3, .egtp = 5});
  EXPECT_EQ(std::tuple(config.tp, config.gtp, config.dp, config.ranks), std::tuple(2, 5, 3, 30));
  EXPECT_EQ(std::tuple(config.etp, config.ep, config.egtp), std::tuple(2, 3, 5));
  const Degrees degrees = degrees_in(config);
  EXPECT_EQ(std::tuple(degrees.tp, degrees.gtp, degrees.dp), std::tuple(2, 5, 3));
  EXPECT_EQ(std::tuple(degrees.etp, degrees.ep, degrees.egtp), std::tuple(2, 3, 5));
  EXPECT_EQ(config.tp_chunks, "7");
  EXPECT_EQ(config.tp_overlap, true);
  EXPECT_EQ(config.products.tp_wire, quant::Format::fp8);
}

TEST(OtherMesh, OneRankHasNoSettingsOfSeveralRanks) {
  TrainConfig several = run_on_many_ranks();
  several.dead[{.dp = 1, .gtp = 3}] = {0};
  several.idle[{.dp = 0, .gtp = 1}] = {1};
  several.tp_spares = several.reduced_batch = "auto";
  const TrainConfig config = alone(several);
  EXPECT_EQ(std::tuple(config.tp, config.gtp, config.dp, config.ranks), std::tuple(1, 1, 1, 1));
  EXPECT_EQ(config.global_batch, config.micro_batch);
  EXPECT_TRUE(config.dead.empty() && config.idle.empty());
  EXPECT_TRUE(config.tp_spares.empty() && config.reduced_batch.empty());
  EXPECT_EQ(std::tuple(config.tp_chunks, config.tp_overlap, config.sequence_parallel),
            std::tuple("auto", std::optional<bool>(), std::optional<bool>()));
  EXPECT_EQ(config.products.tp_wire, quant::Format::bf16);
  EXPECT_EQ(std::tuple(config.reduce_order, config.ranks_per_node), std::tuple(ReduceOrder::sequential, 0));
}

TEST(OtherMesh, RanksAreTheActivePlaces) {
  const TrainConfig whole = run_on_many_ranks();
  const UnusedPlaces unused{.dead = {{{.dp = 1, .gtp = 3}, {0}}}, .idle = {{{.dp = 0, .gtp = 0}, {1, 2}}}};
  EXPECT_EQ(without(whole, unused).ranks, 21);
  UnusedPlaces spares = unused;
  spares.dead[{.dp = 0, .gtp = 1}] = {0, 1};
  spares.tp_spares = "auto";  // each group with a dead slot leaves two slots unused
  EXPECT_EQ(without(whole, spares).ranks, 18);
  EXPECT_EQ(without(without(whole, unused), {}).ranks, 24);
  EXPECT_THROW(without(whole, {.dead = {{{.dp = 2}, {0}}}}), InputError);
}

TEST(OtherMesh, OfAnotherRunHasItsRanksAndPlaces) {
  const UnusedPlaces unused{.dead = {{{.dp = 1, .gtp = 3}, {0}}},
                            .idle = {{{.dp = 0, .gtp = 3}, {2}}},
                            .tp_spares = "auto",
                            .reduced_batch = "3"};
  const TrainConfig config = on_mesh_of({}, without(run_on_many_ranks(), unused));
  EXPECT_EQ(std::tuple(config.tp, config.gtp, config.dp), std::tuple(3, 4, 2));
  EXPECT_EQ(config.ranks, without(run_on_many_ranks(), unused).ranks);
  EXPECT_LT(config.ranks, 23);
  EXPECT_EQ(config.dead, unused.dead);
  EXPECT_EQ(config.idle, unused.idle);
  EXPECT_EQ(std::tuple(config.tp_spares, config.reduced_batch), std::tuple("auto", "3"));
}

TEST(OtherMesh, AMicrobatchOfEveryReaderIsAStep) {
  EXPECT_EQ(with_microbatches(run_on_many_ranks(), 3).global_batch, 3 * 5 * 4 * 2);
}

}  // namespace
}  // namespace tessera::settings
