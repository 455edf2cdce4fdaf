// Ranks of a run that read different files of a stored model.
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/serve/frozen_run.h"
#include "tests/hub/convert_testing.h"
#include "tests/launch/rank_messages.h"

namespace tessera::serve {
namespace {

// The ranks of `tessera generate` and `tessera evaluate` may see different files under one path.
TEST(RanksOfAStoredModel, MustFindTheSameModelAndWeights) {
  const auto model = [](bool is_tied, const char* folder) {
    return StoredModel{.model = std::make_shared<models::LlamaConfig>(hub::testing::odd_llama(is_tied)),
                       .folder = folder};
  };
  const auto said = [&](const StoredModel& last) {
    const StoredModel first = model(false, "/a/step-00000001");
    return launch::testing::messages_of([&](comm::Communicator& all, std::size_t rank) {
      require_same_inputs(all, rank == 2 ? last : first, nlohmann::json::object());
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
