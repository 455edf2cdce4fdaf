#include "tessera/hub/inspect/inspect_checkpoint.h"

#include <fmt/format.h>

#include "tessera/hub/inspect/quantization_error.h"
#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using namespace checkpoint::testing;

TEST(Inspect, ListsTheContentOfACheckpoint) {
  const TemporaryFolder root;
  const std::vector<TestTensor> tensors = sample_tensors();
  write_whole(root / "checkpoints/step-00000020", tensors, 3);
  const nlohmann::json shown = inspect_checkpoint(root.path());
  EXPECT_EQ(shown["step"], 20);
  EXPECT_EQ(shown["state"]["tokens"], 12345);
  ASSERT_EQ(shown["tensors"].size(), tensors.size());
  const nlohmann::json& first = shown["tensors"][0];  // by name, then kind
  EXPECT_EQ(first["name"], "embedding.weight");
  EXPECT_EQ(first["kind"], "weight");
  EXPECT_EQ(first["dtype"], "bf16");
  EXPECT_EQ(first["shape"], (std::vector<std::int64_t>{37, 24}));
  const auto bytes = filled(tensors[0], whole(tensors[0].shape()));
  EXPECT_EQ(first["hash"], checkpoint::hash_of(bytes.data(), bytes.size()));
  EXPECT_EQ(shown["tensors"][3]["kind"], "exp_avg_sq");

  std::int64_t elements = 0;
  for (const nlohmann::json& tensor : shown["tensors"])
    if (tensor["kind"] == "exp_avg") elements += tensor["elements"].get<std::int64_t>();
  ASSERT_EQ(shown["update_rules"].size(), 1u) << shown["update_rules"];
  EXPECT_EQ(shown["update_rules"][0]["planes"].dump(), R"({"exp_avg":"fp32","exp_avg_sq":"fp64"})");
  EXPECT_EQ(shown["update_rules"][0]["parameters"], elements);
  EXPECT_EQ(shown["update_rules"][0]["state_bytes"], (4 + 8) * elements);

  const std::string table = checkpoint_table(shown);
  EXPECT_NE(table.find(fmt::format("state of {} parameters: exp_avg fp32 + exp_avg_sq fp64, {} bytes", elements,
                                   12 * elements)),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("step 20, 9 tensors (weight, master, exp_avg, exp_avg_sq), 3 files"), std::string::npos)
      << table;
  EXPECT_NE(table.find("[3, 5, 7]"), std::string::npos) << table;
  EXPECT_NE(table.find(first["hash"].get<std::string>()), std::string::npos) << table;
}

TEST(Inspect, HashesDependOnlyOnTheContent) {
  const TemporaryFolder root;
  std::vector<TestTensor> tensors{sample_tensors()[0], sample_tensors()[5]};
  write_whole(root / "a", tensors, 1);
  write_whole(root / "b", tensors, 4);
  tensors[1].seed = 99;
  write_whole(root / "c", tensors, 2);
  const auto hash = [&](const char* folder, std::size_t tensor) {
    return inspect_checkpoint(root / folder)["tensors"][tensor]["hash"].get<std::string>();
  };
  EXPECT_EQ(hash("a", 0), hash("b", 0));
  EXPECT_EQ(hash("a", 1), hash("b", 1));
  EXPECT_EQ(hash("a", 0), hash("c", 0));
  EXPECT_NE(hash("a", 1), hash("c", 1));
}

TEST(Inspect, WithoutHashesItReadsOnlyTheManifestAndVerifyFindsDamage) {
  const TemporaryFolder root;
  write_whole(root / "c", sample_tensors());
  const fs::path file = root / "c" / checkpoint::CheckpointReader(root / "c").manifest().files[0].name;
  spill(file, std::string(fs::file_size(file), 'x'));
  EXPECT_FALSE(inspect_checkpoint(root / "c", {.hash = false})["tensors"][0].contains("hash"));
  EXPECT_NE(checkpoint_table(inspect_checkpoint(root / "c", {.hash = false})).find(" -\n"), std::string::npos);
  EXPECT_THAT([&] { inspect_checkpoint(root / "c", {.hash = false, .verify = true}); },
              ThrowsMessage<InputError>(HasSubstr("damaged")));
  EXPECT_THAT([&] { inspect_checkpoint(root / "absent"); }, ThrowsMessage<InputError>(HasSubstr("absent")));
}

// A checkpoint of a Llama as a run writes it, with these settings.
void write_run(const fs::path& folder, const nlohmann::json& config) {
  const models::LlamaConfig model(testing::odd_llama(false));
  const std::vector<models::LogicalTensor> logical = logical_tensors(model.hf_tensors(models::ExpertTensors::separate));
  std::vector<std::vector<std::uint16_t>> weights;
  for (std::size_t i = 0; i < logical.size(); ++i)
    weights.push_back(testing::rounded(testing::numbers_of(i, layout::matrix_shape(logical[i].dims).elements())));
  checkpoint::CheckpointContents contents{.step = 20, .state = {{"model", model.to_json()}}, .tensors = {}};
  if (!config.is_null()) contents.state["config"] = config;
  for (std::size_t i = 0; i < logical.size(); ++i)
    contents.tensors.push_back({logical[i].name, checkpoint::Kind::weight, quant::DType::bf16, logical[i].dims,
                                whole(layout::matrix_shape(logical[i].dims)), weights[i].data()});
  on_ranks(1, [&](comm::Communicator& group) { write_checkpoint(folder, contents, group); });
}

std::map<std::string, std::string> wire_formats(const nlohmann::json& inspected) {
  std::map<std::string, std::string> formats;
  for (const auto& tensor : inspected["tensors"]) formats[tensor["name"]] = tensor.value("wire_format", "none");
  return formats;
}

TEST(Inspect, ShowsTheFormatsThatTheSettingsOfTheRunNameByWeight) {
  const TemporaryFolder root;
  const nlohmann::json config = {{"dtype", "bf16"},
                                 {"tp", 1},
                                 {"seq_len", 32},
                                 {"wire_format", "mxfp8"},
                                 {"wire_rules", "layers.1.*=fp8,layers.*.mlp.down.weight=bf16"}};
  write_run(root / "c", config);
  const nlohmann::json shown = inspect_checkpoint(root / "c");
  const std::map<std::string, std::string> formats = wire_formats(shown);
  EXPECT_EQ(formats.at("layers.0.attention.qkv.weight"), "mxfp8");
  EXPECT_EQ(formats.at("layers.1.attention.qkv.weight"), "fp8");
  EXPECT_EQ(formats.at("layers.1.attention_norm.weight"), "bf16");
  for (const char* name : {"layers.0.mlp.down.weight", "output.weight", "norm.weight"})
    EXPECT_EQ(formats.at(name), "bf16") << name;
  EXPECT_FALSE(shown.contains("wire_format_error"));
  EXPECT_NE(checkpoint_table(shown).find("  mxfp8"), std::string::npos);

  write_run(root / "none", nullptr);
  EXPECT_EQ(wire_formats(inspect_checkpoint(root / "none")).at("layers.0.mlp.down.weight"), "none");
  write_run(root / "unknown", {{"wire_format", "int3"}});
  const nlohmann::json unknown = inspect_checkpoint(root / "unknown");
  EXPECT_NE(unknown["wire_format_error"].get<std::string>().find("int3"), std::string::npos);
  EXPECT_NE(checkpoint_table(unknown).find("formats of weights are unknown"), std::string::npos);
}

TEST(Inspect, ShowsTheQuantizationErrorOfEachWeightThatAFormatCanStore) {
  const TemporaryFolder root;
  testing::write_llama(root / "c", testing::odd_llama(false), quant::DType::bf16);
  const nlohmann::json shown =
      inspect_checkpoint(root / "c", {.hash = false, .quantization_error = parse_error_formats({"all"})});
  int matrices = 0;
  for (const auto& tensor : shown["tensors"]) {
    ASSERT_EQ(tensor.contains("quantization_error"), tensor["kind"] == "weight" && tensor["shape"].size() == 2);
    if (!tensor.contains("quantization_error")) continue;
    ++matrices;
    const auto& errors = tensor["quantization_error"];
    ASSERT_EQ(errors.size(), 4u);
    for (const char* format : {"fp8", "fp8_block", "mxfp8"}) {
      EXPECT_GT(errors[format]["relative_rms"], 0.01) << format;  // 3 bits of mantissa: 2^-4 / sqrt(3) at most
      EXPECT_LT(errors[format]["relative_rms"], 0.037) << format;
    }
    const bool is_odd = tensor["shape"][1] == 33;
    ASSERT_EQ(errors["nvfp4"].contains("error"), is_odd) << tensor;
    if (is_odd)
      EXPECT_EQ(errors["nvfp4"]["error"], "nvfp4 needs an even number of columns, got 33");
    else
      EXPECT_GT(errors["nvfp4"]["relative_rms"], 0.05);
  }
  EXPECT_EQ(matrices, 2 + 2 * 4);
  const std::string table = checkpoint_table(shown);
  EXPECT_NE(table.find("rel. rms"), std::string::npos) << table;
  EXPECT_NE(table.find("nvfp4 needs an even number of columns"), std::string::npos) << table;
}

}  // namespace
}  // namespace tessera::hub
