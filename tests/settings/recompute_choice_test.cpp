// The blocks that recompute activations for a budget.
#include "tessera/predict/recompute_choice.h"

#include <gmock/gmock.h>

#include "tessera/models/architectures/llama.h"
#include "tessera/settings/places.h"
#include "tessera/settings/trainer_options.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

using ::testing::HasSubstr;
using Policy = nn::Recompute;

models::DecoderConfig model_of(std::int64_t layers) {
  models::DecoderConfig model;
  model.vocab_size = 31;
  model.hidden_size = 12;
  model.intermediate_size = 17;
  model.num_layers = layers;
  model.num_heads = 3;
  model.num_kv_heads = 1;
  model.head_dim = 4;
  model.max_position_embeddings = 10;
  return model;
}

TrainConfig config_of(std::int64_t tp) {
  TrainConfig config;
  config.mesh.tp = tp;
  config.recompute = RecomputeSetting::automatic;
  config.activation_budget = {.value = 1, .text = "1"};
  return config;
}

std::int64_t kept(const TrainConfig& config, const models::DecoderConfig& model, const std::vector<Policy>& blocks) {
  std::int64_t most = 0;
  for (int rank = 0; rank < config.mesh.tp; ++rank) {
    predict::DryOptions options =
        dry_options(run_of(config, std::make_shared<models::LlamaConfig>(model)), nn::BlockRecompute(blocks));
    options.rank = rank;
    most = std::max(most, schedule::peak_stashed(dry_step(options).microbatch));
  }
  return most;
}

// Returns the sum over the blocks of 0 for none, 1 for selective and 2 for full.
int effort(const std::vector<Policy>& blocks) {
  int sum = 0;
  for (const Policy policy : blocks) sum += policy == Policy::full ? 2 : policy == Policy::selective ? 1 : 0;
  return sum;
}

TEST(RecomputeChoice, IsTheLeastThatFits) {
  for (const std::int64_t layers : {1, 2, 5})
    for (const std::int64_t tp : {1, 2}) {
      TrainConfig config = config_of(tp);
      const models::DecoderConfig model = model_of(layers);
      const std::vector<Policy> none(static_cast<std::size_t>(layers), Policy::none);
      const std::vector<Policy> full(static_cast<std::size_t>(layers), Policy::full);
      const std::int64_t most = kept(config, model, none), least = kept(config, model, full);
      ASSERT_LT(least, most);
      int before = 2 * static_cast<int>(layers) + 1;
      for (int part = 0; part <= 20; ++part) {
        const std::int64_t budget = least + (most - least) * part / 20;
        config.activation_budget = {.value = budget, .text = std::to_string(budget)};
        const std::vector<Policy> chosen =
            recompute_choice(run_of(config, std::make_shared<models::LlamaConfig>(model)));
        EXPECT_LE(kept(config, model, chosen), budget);
        EXPECT_LE(effort(chosen), before);  // a larger budget never needs more recomputation
        before = effort(chosen);
        // One step of recomputation less, of either kind, does not fit.
        std::vector<Policy> easier = chosen;
        for (auto block = easier.rbegin(); block != easier.rend(); ++block) {
          if (*block == Policy::none) continue;
          if (*block == Policy::selective && effort(chosen) > layers) continue;
          *block = *block == Policy::full ? Policy::selective : Policy::none;
          EXPECT_GT(kept(config, model, easier), budget);
          break;
        }
      }
      EXPECT_EQ(before, 0);
    }
}

TEST(RecomputeChoice, FollowsAFixedPolicyAndRefusesTheImpossible) {
  TrainConfig config = config_of(1);
  const models::DecoderConfig model = model_of(3);
  EXPECT_THAT(base::refusal([&] { recompute_choice(run_of(config, std::make_shared<models::LlamaConfig>(model))); }),
              HasSubstr("--activation-budget: got 1 bytes, expected at least"));
  config.activation_budget = {};
  config.recompute = RecomputeSetting::selective;
  EXPECT_EQ(recompute_choice(run_of(config, std::make_shared<models::LlamaConfig>(model))),
            std::vector<Policy>(3, Policy::selective));
  config.recompute = RecomputeSetting::none;
  EXPECT_EQ(recompute_choice(run_of(config, std::make_shared<models::LlamaConfig>(model))),
            std::vector<Policy>(3, Policy::none));
}

TEST(RecomputeChoice, HasAShortText) {
  EXPECT_EQ(predict::recompute_text({Policy::none, Policy::none}), "none");
  EXPECT_EQ(predict::recompute_text({Policy::full, Policy::selective, Policy::none}),
            "1 selective, 1 full of 3 blocks");
  EXPECT_EQ(predict::recompute_text({Policy::full, Policy::full}), "2 full of 2 blocks");
}

// Ranks that adopt keep more activations than the ranks of full tp groups.
TEST(RecomputeChoice, CountsTheRanksThatAdopt) {
  TrainConfig config{.mesh = {.tp = 3, .dp = 2}};
  std::int64_t full = 0;
  for (const char* dead : {"", "dp0:1", "dp1:2", "dp1:0,2"}) {
    config.mesh.unused.dead = parse_slots(dead, "--dead");
    predict::DryOptions options = dry_options(run_of(config), {});
    std::int64_t most = 0;
    for (int rank = 0; rank < options.step.layout.mesh.world_size(); ++rank)
      most = std::max(most, predict::max_stashed(options, {rank}));
    EXPECT_EQ(predict::max_stashed(options, predict::kinds_of_ranks(options)), most) << dead;
    if (config.mesh.unused.dead.empty()) full = most;
    EXPECT_EQ(most > full, !config.mesh.unused.dead.empty()) << dead;
  }
}

// One kind may have more query heads than another, and fewer columns.
TEST(RankKinds, ThatHaveLessOfEverythingAreNotBusiest) {
  const predict::RankKind first{.rank = 0, .group_ranks = 3, .sizes = {2, 5}},
      second{.rank = 1, .group_ranks = 3, .sizes = {3, 4}};
  const predict::RankKind less{.rank = 2, .group_ranks = 3, .sizes = {2, 4}},
      other{.rank = 3, .group_ranks = 4, .sizes = {1, 1}};
  std::vector<int> ranks;
  for (const predict::RankKind& kind : predict::busiest({first, second, less, other})) ranks.push_back(kind.rank);
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 3}));
}

}  // namespace
}  // namespace tessera::settings
