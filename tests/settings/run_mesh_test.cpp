#include "tessera/settings/run_mesh.h"

#include <gtest/gtest.h>

namespace tessera::settings {
namespace {

TrainConfig run_on_many_ranks() {
  TrainConfig config{.mesh = {.ranks = 24, .tp = 3, .gtp = 4, .dp = 2}, .micro_batch = 5, .global_batch = 240};
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
      on(run_on_many_ranks(), {.tp = 2, .gtp = 5, .dp = 3, .experts = nn::ExpertDegrees{.etp = 1, .ep = 2, .egtp = 5}});
  EXPECT_EQ(std::tuple(config.mesh.tp, config.mesh.gtp, config.mesh.dp, config.mesh.ranks), std::tuple(2, 5, 3, 30));
  EXPECT_EQ(std::tuple(config.mesh.etp, config.mesh.ep, config.mesh.egtp), std::tuple(1, 2, 5));
  EXPECT_EQ(config.tp_chunks, "7");
  EXPECT_EQ(config.tp_overlap, true);
  EXPECT_EQ(config.products.tp_wire, quant::Format::fp8);
}

TEST(OtherMesh, OneRankHasNoSettingsOfSeveralRanks) {
  TrainConfig several = run_on_many_ranks();
  several.mesh.unused = {.dead = {{{.dp = 1, .gtp = 3}, {0}}},
                         .idle = {{{.dp = 0, .gtp = 1}, {1}}},
                         .tp_spares = "auto",
                         .reduced_batch = "auto"};
  const TrainConfig config = alone(several);
  EXPECT_EQ(std::tuple(config.mesh.tp, config.mesh.gtp, config.mesh.dp, config.mesh.ranks), std::tuple(1, 1, 1, 1));
  EXPECT_EQ(config.global_batch, config.micro_batch);
  EXPECT_FALSE(config.mesh.has_unused_places());
  EXPECT_EQ(config.mesh.unused.reduced_batch, "");
  EXPECT_EQ(std::tuple(config.tp_chunks, config.tp_overlap, config.sequence_parallel),
            std::tuple("auto", std::optional<bool>(), std::optional<bool>()));
  EXPECT_EQ(config.products.tp_wire, quant::Format::bf16);
  EXPECT_EQ(std::tuple(config.reduce_order, config.ranks_per_node), std::tuple(ReduceOrder::sequential, 0));
}

}  // namespace
}  // namespace tessera::settings
