// Tests the lines and the JSON that describe the number formats of weights, and the refusal of settings without effect.
#include "tessera/settings/text/weights_by_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tessera/models/registry.h"
#include "tessera/settings/resolve.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

using quant::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Flags = std::vector<std::string>;

models::ModelConfigPtr model_of(const std::string& name) {
  return models::read_model_config(models::find_model_config(name, TESSERA_CONFIGS));
}

TrainConfig resolved(const models::ModelConfig& model, Flags flags) {
  flags.insert(flags.end(), {"--model", "m", "--data", "d", "--out", "o", "--steps", "2", "--global-batch", "1"});
  return resolve_model(resolve_ranks(resolve_settings(parse(flags)), std::nullopt), model);
}

std::vector<std::string> lines_of(const std::string& name, const Flags& flags) {
  const models::ModelConfigPtr model = model_of(name);
  const TrainConfig config = resolved(*model, flags);
  return format_lines(format_table(config, *model), config.dtype);
}

std::string refusal_of(const std::string& name, Flags flags) {
  flags.insert(flags.end(), {"--dtype", "bf16"});
  const models::ModelConfigPtr model = model_of(name);
  return base::refusal([&] { resolved(*model, flags); });
}

TEST(WeightsByFormat, HaveOneLineWithoutFormats) {
  for (const char* dtype : {"fp64", "bf16"})
    EXPECT_THAT(lines_of("llama-tiny", {"--dtype", dtype}),
                ElementsAre("formats: 100.0 % " + std::string(dtype) + " in the wire, the backward wire and products"));
}

TEST(WeightsByFormat, HaveALineForEachUse) {
  const Flags flags{"--dtype",         "bf16",         "--wire-format",          "nvfp4", "--wire-rules-backward",
                    "layers.0.*=bf16", "--gemm-rules", "layers.1.mlp.down.*=fp8"};
  EXPECT_THAT(
      lines_of("llama-tiny", flags),
      ElementsAre(
          "wire: 26.4 % bf16, 73.6 % nvfp4 of the parameters; bf16: embedding.weight (default), "
          "layers.*.attention_norm.weight, layers.*.mlp_norm.weight, norm.weight (vector)",
          "backward wire: 63.2 % bf16, 36.8 % nvfp4 of the parameters; bf16: embedding.weight (default), layers.0.* "
          "(rule), "
          "layers.*.attention_norm.weight, layers.*.mlp_norm.weight, norm.weight (vector)",
          "products: 91.0 % bf16, 9.0 % fp8 of the parameters; bf16: * (default), layers.*.attention_norm.weight, "
          "layers.*.mlp_norm.weight, norm.weight (vector)"));
}

TEST(WeightsByFormat, NameTheUsesTogetherIfTheyAreEqual) {
  const std::vector<std::string> lines = lines_of("llama-tiny", {"--dtype", "bf16", "--wire-format", "fp8"});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], ::testing::StartsWith("wire and backward wire: "));
  EXPECT_EQ(lines[1], "products: 100.0 % bf16 of the parameters");
}

TEST(WeightsByFormat, HaveALineForTheBackwardWireIfOnlyItHasFormats) {
  const std::vector<std::string> lines = lines_of("llama-tiny", {"--dtype", "bf16", "--wire-format-backward", "fp8"});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "wire: 100.0 % bf16 of the parameters");
  EXPECT_THAT(lines[1], HasSubstr("fp8 of the parameters"));
}

TEST(WeightsByFormat, CountProductsOfExperts) {
  const std::vector<std::string> lines = lines_of("mixtral-8x7b", {"--dtype", "bf16", "--gemm-format", "fp8"});
  EXPECT_THAT(lines.back(), ::testing::StartsWith("products: 0.6 % bf16, 99.4 % fp8 of the parameters"));
}

TEST(WeightsByFormat, AddUpToTheParametersOfEachModel) {
  for (const char* name : {"llama-tiny-odd", "llama3-8b", "qwen2-tiny-odd", "qwen3-tiny-odd", "mixtral-8x7b",
                           "mixtral-tiny-odd", "qwen3-moe-tiny-odd", "dots1-tiny-odd", "dots.llm1"}) {
    const models::ModelConfigPtr model = model_of(name);
    const bool has_experts = model->sizes().num_experts > 0;
    for (const char* tp : {"1", "2"}) {
      const TrainConfig config =
          resolved(*model, {"--dtype", "bf16", "--tp", tp, "--etp", has_experts ? tp : "1", "--wire-format", "fp8",
                            "--wire-format-backward", "bf16", "--gemm-format", "fp8"});
      const nlohmann::ordered_json json = weights_by_format(format_table(config, *model), config.dtype);
      ASSERT_EQ(json.size(), 3u);
      for (const auto& [use, formats] : json.items()) {
        std::int64_t elements = 0;
        for (const auto& [format, count] : formats.items()) elements += count.get<std::int64_t>();
        EXPECT_EQ(elements, num_params(*model)) << name << " " << use;
      }
      EXPECT_FALSE(json["wire_backward"].contains("fp8"));
      EXPECT_TRUE(json["wire"].contains("fp8") && json["products"].contains("fp8"));
    }
  }
}

TEST(WeightsByFormat, RefuseFormatsAndRulesWithoutAWeight) {
  EXPECT_EQ(
      refusal_of("llama-tiny", {"--wire-format", "nvfp4", "--wire-rules", "*=mxfp8"}),
      "--wire-format: got nvfp4, but no weight of model 'm' has it: expected bf16, or rules that leave a weight to "
      "it");
  EXPECT_THAT(refusal_of("llama-tiny", {"--gemm-format", "fp8", "--gemm-rules", "*=bf16"}),
              HasSubstr("--gemm-format: got fp8, but no weight"));
  EXPECT_THAT(refusal_of("llama-tiny", {"--wire-format-backward", "fp8", "--wire-rules-backward", "layers.*=bf16"}),
              HasSubstr("--wire-format-backward: got fp8, but no weight"));
  for (const char* flag : {"--wire-rules", "--wire-rules-backward", "--gemm-rules"})
    EXPECT_THAT(
        refusal_of("mixtral-tiny-odd", {flag, "layers.0.router.weight=fp8"}),
        HasSubstr(std::string(flag) + " layers.0.router.weight=fp8: 'layers.0.router.weight' has no number format"));
  EXPECT_THAT(refusal_of("llama-tiny", {"--wire-rules", "layers.0.*=mxfp8,layers.*=fp8"}),
              HasSubstr("--wire-rules: got layers.0.*=mxfp8, which has no effect: later rules match the same weights"));
  EXPECT_NO_THROW(lines_of("llama-tiny", {"--dtype", "bf16", "--wire-format", "nvfp4", "--wire-rules", "*=nvfp4"}));
}

TEST(WeightsByFormat, RefuseSplitMastersOfOtherWeights) {
  EXPECT_THAT(refusal_of("llama-tiny", {"--masters", "split", "--wire-rules", "layers.1.mlp.down.weight=fp8"}),
              AllOf(HasSubstr("--masters: got split, but 'layers.1.mlp.down.weight' is stored in fp8"),
                    HasSubstr("expected auto, or bf16 for this weight")));
  EXPECT_THAT(refusal_of("llama-tiny", {"--masters", "split", "--wire-format-backward", "mxfp8"}),
              HasSubstr("--masters: got split, but backward passes read 'layers.0."));
  EXPECT_THAT(base::refusal([] {
                lines_of("llama-tiny", {"--masters", "split", "--dtype", "fp32"});
              }),
              HasSubstr("--masters: got split with --dtype fp32, expected auto or fp32, or --dtype bf16"));
  for (const char* masters : {"auto", "fp32"})
    EXPECT_NO_THROW(lines_of("llama-tiny", {"--masters", masters, "--dtype", "fp64"}));
  EXPECT_NO_THROW(lines_of("mixtral-tiny-odd", {"--masters", "split", "--gemm-format", "fp8", "--dtype", "bf16"}));
}

// Each element of the model counts once. The router has no master beside it.
TEST(WeightsByFormat, CountTheBytesOfMasters) {
  const models::ModelConfigPtr model = model_of("mixtral-tiny-odd");
  std::int64_t all = 0, routers = 0, down = 0;
  for (const shard::ParameterSpec& spec : model->parameters({})) {
    std::int64_t elements = 1;
    for (const std::int64_t dim : spec.dims) elements *= dim;
    all += elements;
    if (spec.name.ends_with("router.weight")) routers += elements;
    if (spec.name == "layers.0.experts.down.weight") down += elements;
  }
  const auto bytes_of = [&](Flags flags) {
    flags.insert(flags.end(), {"--dtype", "bf16"});
    const MasterBytes bytes = master_bytes(resolved(*model, flags), *model);
    return std::pair(bytes.split, bytes.whole);
  };
  EXPECT_EQ(bytes_of({}), std::pair(2 * (all - routers), std::int64_t{0}));
  EXPECT_EQ(bytes_of({"--masters", "fp32"}), std::pair(std::int64_t{0}, 4 * (all - routers)));
  EXPECT_EQ(bytes_of({"--wire-rules", "layers.0.experts.down.weight=fp8"}),
            std::pair(2 * (all - routers - down), 4 * down));
}

// The width of an expert is 344, so each of 8 etp ranks has 43 columns.
TEST(WeightsByFormat, RefuseAnOddNumberOfColumnsOfExpertsOnAnEtpRank) {
  const auto flags_over = [](const char* degree) -> Flags {
    return {"--tp", "8", degree, "8", "--wire-rules", "layers.0.experts.down.weight=nvfp4"};
  };
  EXPECT_EQ(refusal_of("mixtral-demo", flags_over("--etp")),
            "parameter 'layers.0.experts.down.weight': 4-bit formats need an even number of columns on each compute "
            "rank, got 43");
  Flags over_ep = flags_over("--ep");
  over_ep.insert(over_ep.end(), {"--dtype", "bf16"});
  EXPECT_NO_THROW(lines_of("mixtral-demo", over_ep));
}

}  // namespace
}  // namespace tessera::settings
