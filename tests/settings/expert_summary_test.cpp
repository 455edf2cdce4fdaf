#include "tessera/settings/expert_summary.h"

#include <gtest/gtest.h>

namespace tessera::settings {
namespace {

constexpr models::ModelSizes kSizes{.num_experts = 7, .experts_per_token = 2};

// A block has 3 sequences of 10 tokens.
TrainConfig config_of(std::int64_t tp, std::int64_t etp, std::int64_t ep) {
  return {.backend = Backend::nccl, .tp = tp, .etp = etp, .ep = ep, .micro_batch = 3, .seq_len = 10};
}

TEST(ExpertSummary, HasTheRowsOfTheRankWithTheMostExperts) {
  const auto rows = [](const TrainConfig& config, double room) {
    return expert_summary(config, kSizes, room, 0).room_rows;
  };
  EXPECT_EQ(rows(config_of(1, 1, 1), 0), 60);
  EXPECT_EQ(rows(config_of(1, 1, 1), 1.5), 60);  // one rank needs as many rows as the tokens have choices
  // Two blocks are dispatched to two owners, and one of them has 4 experts: the even load is 120 * 4 / 7 rows.
  EXPECT_EQ(rows(config_of(1, 1, 2), 0), 120);
  EXPECT_EQ(rows(config_of(1, 1, 2), 1.5), 104);  // 1.5 * 69
  // Both tp ranks have the tokens of one block.
  EXPECT_EQ(rows(config_of(2, 1, 2), 1.5), 53);  // 1.5 * 35, rounded up
  EXPECT_EQ(rows(config_of(2, 2, 1), 1.5), 60);
  // An owner has one expert, which every token may choose once.
  EXPECT_EQ(rows(config_of(1, 1, 7), 0), 210);
}

TEST(ExpertSummary, NamesTheTransportBetweenOwners) {
  EXPECT_EQ(expert_summary(config_of(1, 1, 1), kSizes, 0, 0).transport, "");
  EXPECT_EQ(expert_summary(config_of(2, 2, 1), kSizes, 0, 0).transport, "nccl");
  TrainConfig local = config_of(1, 1, 2);
  local.backend = Backend::local;
  EXPECT_EQ(expert_summary(local, kSizes, 0, 0).transport, "local");
}

TEST(ExpertSummary, IsWrittenAsJson) {
  nlohmann::ordered_json json;
  add_expert_summary(expert_summary(config_of(1, 1, 2), kSizes, 0, 12), json);
  EXPECT_EQ(json,
            (nlohmann::ordered_json{{"expert_room_rows", 120}, {"expert_transport", "nccl"}, {"padded_products", 12}}));
}

}  // namespace
}  // namespace tessera::settings
