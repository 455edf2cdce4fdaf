#include "tessera/run/run_setup.h"

#include <gmock/gmock.h>

#include "tessera/hub/stored_run.h"
#include "tessera/launch/equal_ranks.h"
#include "tests/data/dataset_writer.h"
#include "tests/hub/convert_testing.h"
#include "tests/settings/config_test_support.h"

namespace tessera::run {
namespace {
using ::testing::Contains;
using ::testing::HasSubstr;
using namespace hub::testing;
using quant::DType;

// A checkpoint of step 0 that was imported from the folder `hf`, and data for it.
class ImportedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { import(DType::fp32); }
  void import(DType dtype) {
    for (const char* name : {"c", "hf", "imported"}) fs::remove_all(root_ / name);
    write_llama(root_ / "c", odd_llama(false), dtype);
    hub::convert(root_ / "c", root_ / "hf");
    hub::convert(root_ / "hf", root_ / "imported");
    data::IndexedDatasetWriter writer((root_ / "tokens").string(), data::TokenType::u16);
    writer.add_sequence(std::vector<std::int64_t>(200, 5));
    writer.end_document();
    writer.finish();
  }
  RunSetup setup(std::vector<std::string> more = {}) {
    std::vector<std::string> flags{"--resume",  (root_ / "imported").string(),
                                   "--data",    (root_ / "tokens").string(),
                                   "--seq-len", "16",
                                   "--out",     (root_ / "out").string(),
                                   "--steps",   "1"};
    flags.insert(flags.end(), more.begin(), more.end());
    return make_run_setup(settings::parse(flags), {.configs = root_ / "configs"});
  }
  // Replaces the checkpoint's state.
  void restate(const nlohmann::json& state) {
    checkpoint::Manifest manifest = checkpoint::load_manifest(root_ / "imported");
    manifest.state = state;
    fs::remove(root_ / "imported" / std::string(checkpoint::kManifestFile));
    fs::remove(root_ / "imported" / std::string(checkpoint::kManifestChecksumFile));
    checkpoint::save_manifest(root_ / "imported", manifest);
  }
  TemporaryFolder root_;
};

TEST_F(ImportedCheckpoint, NeedsNoModel) {
  const RunSetup named = setup({"--model", (root_ / "hf").string()}), unnamed = setup();
  EXPECT_EQ(unnamed.run.model()->to_json(), named.run.model()->to_json());
  EXPECT_EQ(unnamed.run->model, (root_ / "hf").string());
  EXPECT_EQ(unnamed.first_step, 1);
  fs::rename(root_ / "hf", root_ / "elsewhere");
  EXPECT_EQ(setup().run.model()->to_json(), named.run.model()->to_json());
  EXPECT_EQ(stored_state(setup())["model"], named.run.model()->to_json());
}

// Only the ranks that load weights from files take part in the loading.
TEST_F(ImportedCheckpoint, AllRanksMustLoadTheSameKindOfWeights) {
  const RunSetup loaded = setup();
  RunSetup random = setup();
  random.checkpoint.reset();  // a rank that does not see the checkpoint of step 0
  RunSetup initialised = random;
  settings::TrainConfig config = random.run.stored();
  config.init = "folder";
  initialised.run = settings::resolve(config, random.run.model(), settings::Use::train);
  const std::string name = "the first weights";
  EXPECT_EQ(equal_on_all_ranks(loaded)[name], "of a checkpoint");
  EXPECT_EQ(equal_on_all_ranks(random)[name], "random");
  EXPECT_EQ(equal_on_all_ranks(initialised)[name], "of --init");
  EXPECT_EQ(equal_on_all_ranks(loaded)["the first step"], equal_on_all_ranks(random)["the first step"]);
}

TEST_F(ImportedCheckpoint, ANamedModelMustEqualItsOwn) {
  nlohmann::json other = models::LlamaConfig(odd_llama(false)).to_json();
  other["num_hidden_layers"] = 3;
  spill(root_ / "other.json", other.dump());
  EXPECT_THAT(base::refusal([&] {
                setup({"--model", (root_ / "other.json").string()});
              }),
              HasSubstr("num_hidden_layers is 3, expected 2"));
  EXPECT_THAT(base::refusal([&] { setup({"--model", "absent"}); }), HasSubstr("'absent' not found"));
}

TEST_F(ImportedCheckpoint, OfAnotherTypeThanTheRunNamesTheFlag) {
  EXPECT_THAT(base::refusal([&] {
                setup({"--dtype", "bf16"});
              }),
              HasSubstr("--dtype: got bf16, expected fp32: weight '"));
  import(DType::bf16);
  EXPECT_THAT(base::refusal([&] { setup(); }), HasSubstr("--dtype: got fp32, expected bf16: weight '"));
  EXPECT_EQ(setup({"--dtype", "bf16"}).run->dtype, DType::bf16);
}

TEST_F(ImportedCheckpoint, OfARunKeepsItsModelWithoutTheFile) {
  const RunSetup first = setup({"--model", (root_ / "hf").string()});
  restate(stored_state(first));
  fs::remove_all(root_ / "hf");
  const RunSetup resumed = setup();
  EXPECT_EQ(resumed.run.model()->to_json(), first.run.model()->to_json());
  EXPECT_EQ(resumed.run->model, (root_ / "hf").string());
}

TEST_F(ImportedCheckpoint, OfARunGivesTheRanksBeforeAPlan) {
  restate(stored_state(setup({"--gtp", "2", "--dp", "3"})));
  const std::string path = (root_ / "imported").string();
  const settings::TrainConfig kept = hub::with_stored_ranks(settings::parse({"--resume", path, "--out", "o"}));
  EXPECT_EQ(settings::mesh_text(kept.mesh), "6 ranks (tp 1 x gtp 2 x dp 3)");
  const settings::TrainConfig given =
      hub::with_stored_ranks(settings::parse({"--resume", path, "--out", "o", "--gtp", "4"}));
  EXPECT_EQ(std::pair(given.mesh.gtp, given.mesh.dp), std::pair(std::int64_t{4}, std::int64_t{0}));
  const std::vector<std::string> flags{"--resume", path, "--out", (root_ / "out").string()};
  EXPECT_THAT(
      base::refusal([&] { make_run_setup(settings::parse(flags), {.configs = root_.path(), .world_size = 4}); }),
      HasSubstr("--resume: 4 processes were started, expected the mesh of"));
  EXPECT_EQ(make_run_setup(settings::parse(flags), {.configs = root_.path(), .world_size = 6}).run->mesh.ranks, 6);
}

TEST_F(ImportedCheckpoint, OfABackendRunsOnIt) {
  restate(stored_state(setup({"--backend", "mpi"})));
  const std::string path = (root_ / "imported").string();
  EXPECT_EQ(hub::with_stored_ranks(settings::parse({"--resume", path})).backend, settings::Backend::mpi);
  EXPECT_EQ(hub::with_stored_ranks(settings::parse({"--resume", path, "--backend", "local"})).backend,
            settings::Backend::local);
}

// A run keeps the shares of its checkpoint. A note reports that the weights give other shares.
TEST_F(ImportedCheckpoint, OfARunKeepsItsShares) {
  const std::string tokens = (root_ / "tokens").string();
  const auto blended = [&] {
    return make_run_setup(
        settings::parse({"--resume", (root_ / "imported").string(), "--data", "1e-9", tokens, "1", tokens, "--seq-len",
                         "16", "--out", (root_ / "out").string(), "--steps", "1"}),
        {.configs = root_.path()});
  };
  nlohmann::json state = stored_state(blended());
  EXPECT_EQ(state["data"][1]["share"], 1000000000);
  state["data"][1]["share"] = 65535;
  restate(state);
  const RunSetup resumed = blended();
  EXPECT_EQ(stored_state(resumed)["data"], state["data"]);
  EXPECT_THAT(resumed.notes, Contains(HasSubstr("keeps the shares of its checkpoint")));
  state["data"][1]["share"] = 65534;  // does not belong to these weights
  restate(state);
  EXPECT_THAT(base::refusal([&] { blended(); }), HasSubstr("--data: set 2 is"));
}

}  // namespace
}  // namespace tessera::run
