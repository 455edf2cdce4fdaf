#include "tessera/run/inspect/inspect_checkpoint.h"

#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::run {
namespace {

using namespace checkpoint::testing;

TEST(Inspect, ListsWhatACheckpointHolds) {
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

  const std::string table = checkpoint_table(shown);
  EXPECT_NE(table.find("step 20, 9 tensors (weight, master, exp_avg, exp_avg_sq), 3 files"), std::string::npos)
      << table;
  EXPECT_NE(table.find("[3, 5, 7]"), std::string::npos) << table;
  EXPECT_NE(table.find(first["hash"].get<std::string>()), std::string::npos) << table;
}

TEST(Inspect, EqualContentsShowEqualHashesAndOtherContentsOthers) {
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
  EXPECT_THROW(inspect_checkpoint(root / "c", {.hash = false, .verify = true}), InputError);
  EXPECT_THROW(inspect_checkpoint(root / "absent"), InputError);
}

}  // namespace
}  // namespace tessera::run
