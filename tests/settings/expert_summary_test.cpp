#include "tessera/settings/expert_summary.h"

#include <gtest/gtest.h>

#include "tessera/models/architectures/mixtral.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

// A block has 3 sequences of 10 tokens.
ResolvedRun run_with(std::int64_t tp, std::int64_t etp, std::int64_t ep, Backend backend = Backend::nccl) {
  models::DecoderConfig model{.vocab_size = 16, .hidden_size = 8, .num_layers = 1, .max_position_embeddings = 10};
  model.num_heads = model.num_kv_heads = 2, model.head_dim = 4;
  model.experts = models::ExpertsConfig{.count = 7, .per_token = 2, .width = 8, .sparse = {true}};
  return run_of({.backend = backend, .mesh = {.tp = tp, .gtp = etp * ep / tp, .etp = etp, .ep = ep}, .micro_batch = 3},
                std::make_shared<models::MixtralConfig>(model));
}

TEST(ExpertSummary, HasTheRowsOfTheRankWithTheMostExperts) {
  const auto rows = [](const ResolvedRun& run, double room) { return expert_summary(run, room, 0).room_rows; };
  EXPECT_EQ(rows(run_with(1, 1, 1), 0), 60);
  EXPECT_EQ(rows(run_with(1, 1, 1), 1.5), 60);  // one rank needs as many rows as the tokens have choices
  // Two blocks are dispatched to two owners, and one of them has 4 experts: the even load is 120 * 4 / 7 rows.
  EXPECT_EQ(rows(run_with(1, 1, 2), 0), 120);
  EXPECT_EQ(rows(run_with(1, 1, 2), 1.5), 104);  // 1.5 * 69
  // Both tp ranks have the tokens of one block.
  EXPECT_EQ(rows(run_with(2, 1, 2), 1.5), 53);  // 1.5 * 35, rounded up
  EXPECT_EQ(rows(run_with(2, 2, 1), 1.5), 60);
  // An owner has one expert, which every token may choose once.
  EXPECT_EQ(rows(run_with(1, 1, 7), 0), 210);
}

TEST(ExpertSummary, NamesTheTransportBetweenOwners) {
  EXPECT_EQ(expert_summary(run_with(1, 1, 1), 0, 0).transport, "");
  EXPECT_EQ(expert_summary(run_with(2, 2, 1), 0, 0).transport, "nccl");
  EXPECT_EQ(expert_summary(run_with(1, 1, 2, Backend::local), 0, 0).transport, "local");
}

TEST(ExpertSummary, IsWrittenAsJson) {
  nlohmann::ordered_json json;
  add_expert_summary(expert_summary(run_with(1, 1, 2), 0, 12), json);
  EXPECT_EQ(json,
            (nlohmann::ordered_json{{"expert_room_rows", 120}, {"expert_transport", "nccl"}, {"padded_products", 12}}));
}

}  // namespace
}  // namespace tessera::settings
