// Ranks of a run that read different files of a stored model, and warnings about the run that wrote it.
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/serve/frozen_run.h"
#include "tests/base/files.h"
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

TEST(StoredModels, WarnOfTheNumberFormatsOfTheRun) {
  const base::TempFolder root;
  const auto warnings_of = [&](const nlohmann::json& settings) {
    std::filesystem::remove_all(root / "c");
    hub::testing::write_model(root / "c", models::LlamaConfig(hub::testing::odd_llama(false)), quant::DType::fp32,
                              settings);
    return find_stored_model(root / "c").warnings;
  };
  const auto names = [](const std::string& flags) {
    return ::testing::ElementsAre("the run was trained with " + flags +
                                  "; its formats are not used here: products are computed in --dtype");
  };
  for (const nlohmann::json& settings :
       {nlohmann::json(), nlohmann::json::object(), nlohmann::json{{"wire_format", "bf16"}, {"gemm_rules", ""}}})
    EXPECT_THAT(warnings_of(settings), ::testing::IsEmpty()) << settings;
  EXPECT_THAT(warnings_of({{"wire_format", "nvfp4"}, {"gemm_format", "bf16"}}), names("--wire-format nvfp4"));
  EXPECT_THAT(
      warnings_of({{"wire_rules", "a=fp8"}, {"wire_format_backward", "mxfp8"}, {"wire_rules_backward", "b=fp8"}}),
      names("--wire-rules a=fp8 --wire-format-backward mxfp8 --wire-rules-backward b=fp8"));
  EXPECT_THAT(warnings_of({{"gemm_rules", "a=fp8"}, {"gemm_format", "fp8"}}),
              names("--gemm-format fp8 --gemm-rules a=fp8"));
}

}  // namespace
}  // namespace tessera::serve
