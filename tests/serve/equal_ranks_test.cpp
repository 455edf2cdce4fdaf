// Ranks of a run with different settings.
#include "tessera/launch/equal_ranks.h"

#include <gmock/gmock.h>

#include <array>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/serve/frozen_run.h"
#include "tests/hub/convert_testing.h"
#include "tests/settings/config_test_support.h"

namespace tessera::serve {
namespace {

using nlohmann::json;

// Calls compare(group, rank) on three ranks. Returns the message of each rank, or "" for no error.
template <typename Compare>
std::array<std::string, 3> messages_of(Compare compare) {
  std::array<std::string, 3> found;
  comm::run_local(3, {}, [&](comm::World& world) {
    const auto all = world.make_group("all", {{0, 1, 2}});
    const auto rank = static_cast<std::size_t>(world.rank());
    try {
      compare(*all, rank);
    } catch (const InputError& error) {
      found[rank] = error.what();
    }
  });
  return found;
}

std::array<std::string, 3> messages(const std::array<json, 3>& values) {
  return messages_of([&](comm::Communicator& all, std::size_t rank) { launch::require_equal(all, values[rank]); });
}

TEST(RanksOfARun, MayHaveEqualValues) {
  EXPECT_THAT(messages({json{{"--lr", 1e-3}}, json{{"--lr", 1e-3}}, json{{"--lr", 1e-3}}}), ::testing::Each(""));
}

TEST(RanksOfARun, AllNameTheFirstDifference) {
  const json first{{"--lr", 1e-3}, {"--seed", 1}}, other{{"--lr", 2e-3}, {"--seed", 2}};
  EXPECT_THAT(
      messages({first, first, other}),
      ::testing::Each("rank 2: --lr: got 0.002, expected 0.001 as on rank 0: start all ranks with the same flags and "
                      "files"));
  EXPECT_THAT(messages({first, other, other}), ::testing::Each(::testing::HasSubstr("rank 1: --lr")));
}

TEST(RanksOfARun, AllNameAMissingValue) {
  const json first{{"the data", 1}, {"the held-out data", 7}}, other{{"the data", 1}};
  EXPECT_THAT(messages({first, other, first}),
              ::testing::Each(::testing::HasSubstr("rank 1: the held-out data: got ")));
  EXPECT_THAT(messages({other, first, other}),
              ::testing::Each(::testing::HasSubstr("rank 1: the held-out data: got 7")));
}

// The ranks of `tessera generate` and `tessera evaluate` may see different files under one path.
TEST(RanksOfAStoredModel, MustFindTheSameModelAndWeights) {
  const auto model = [](bool is_tied, const char* folder) {
    return serve::StoredModel{.model = std::make_shared<models::LlamaConfig>(hub::testing::odd_llama(is_tied)),
                              .folder = folder};
  };
  const auto said = [&](const serve::StoredModel& last) {
    const serve::StoredModel first = model(false, "/a/step-00000001");
    return messages_of([&](comm::Communicator& all, std::size_t rank) {
      serve::require_same_inputs(all, rank == 2 ? last : first, json::object());
    });
  };
  EXPECT_THAT(said(model(false, "/b/step-00000001")), ::testing::Each(""));
  EXPECT_THAT(said(model(true, "/a/step-00000001")),
              ::testing::Each(::testing::StartsWith("rank 2: the model: got {")));
  EXPECT_THAT(said(model(false, "/a/step-00000002")),
              ::testing::Each(::testing::StartsWith(
                  "rank 2: the weights: got \"step-00000002\", expected \"step-00000001\" as on rank 0")));
}

}  // namespace
}  // namespace tessera::serve
