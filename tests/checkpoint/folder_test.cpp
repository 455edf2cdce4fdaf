#include "tessera/checkpoint/folder.h"

#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

std::vector<std::string> names(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path().filename().string());
  std::sort(found.begin(), found.end());
  return found;
}

using Names = std::vector<std::string>;

TEST(CheckpointFolder, AppearsOnlyWhenCommitted) {
  const TemporaryFolder root;
  const fs::path parent = root / "run/checkpoints";
  {
    PartialFolder folder(parent / "step-00000020");
    spill(folder.path() / "manifest.json", "x");
    EXPECT_FALSE(fs::exists(parent / "step-00000020"));
    EXPECT_FALSE(latest_checkpoint(parent));
  }
  EXPECT_EQ(names(parent), Names{});
  make_step(parent, 20);
  EXPECT_EQ(names(parent), Names{"step-00000020"});
}

TEST(CheckpointFolder, AmbiguousPathsAreErrors) {
  const TemporaryFolder root;
  make_step(root.path(), 20);
  EXPECT_EQ(resolve_checkpoint(root.path()), root / "step-00000020");
  fs::create_directory(root / "step-020");
  spill(root / "step-020" / "manifest.json", "x");
  EXPECT_NE(input_error([&] { resolve_checkpoint(root.path()); }).find("are both of step 20"), std::string::npos);
  make_step(root.path(), 30);
  EXPECT_EQ(resolve_checkpoint(root.path()), root / "step-00000030");
  make_step(root / "checkpoints", 40);
  const std::string message = input_error([&] { resolve_checkpoint(root.path()); });
  EXPECT_NE(message.find("holds step-00000030 and checkpoints/step-00000040"), std::string::npos) << message;
}

TEST(CheckpointFolder, CommitReplacesAnExistingFolder) {
  const TemporaryFolder root;
  make_step(root.path(), 20, "old");
  make_step(root.path(), 20, "new");
  EXPECT_EQ(slurp(root / "step-00000020/manifest.json"), "new");
  EXPECT_EQ(names(root.path()), Names{"step-00000020"});
}

TEST(CheckpointFolder, TheNextWriterRemovesOnlyTheFoldersOfCrashedWriters) {
  const TemporaryFolder root;
  const Names kept{"model.partial-0123456789abcdef", "notes", "step-00000010", "step-00000020.partial-0123"};
  for (const std::string& name : kept) fs::create_directory(root / name);
  fs::create_directory(root / "step-00000010.partial-0123456789abcdef");
  fs::create_directory(root / "step-00000020.partial-00000000000000ff");
  spill(root / "step-00000020.partial-00000000000000ff/manifest.json", "x");
  EXPECT_TRUE(list_checkpoints(root.path()).empty());
  make_step(root.path(), 30);
  Names expected = kept;
  expected.push_back("step-00000030");
  EXPECT_EQ(names(root.path()), expected);
  { PartialFolder other(root / "model"); }
  EXPECT_FALSE(fs::exists(root / "model.partial-0123456789abcdef"));
}

TEST(CheckpointFolder, LatestIsTheCompleteOneWithTheHighestStep) {
  const TemporaryFolder root;
  EXPECT_FALSE(latest_checkpoint(root / "absent"));
  for (const std::int64_t step : {5, 100000000, 20}) make_step(root.path(), step);
  fs::create_directory(root / "step-200000000");  // a folder without a manifest is not a checkpoint
  fs::create_directory(root / "step-x");
  spill(root / "step-999999999", "a file");
  std::vector<std::int64_t> steps;
  for (const StepFolder& folder : list_checkpoints(root.path())) steps.push_back(folder.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{5, 20, 100000000}));
  EXPECT_EQ(latest_checkpoint(root.path())->path, root / "step-100000000");
}

TEST(CheckpointFolder, ResolvesUserPaths) {
  const TemporaryFolder root;
  make_step(root / "checkpoints", 7);
  const fs::path step = root / "checkpoints/step-00000007";
  EXPECT_EQ(resolve_checkpoint(step), step);
  EXPECT_EQ(resolve_checkpoint(root / "checkpoints"), step);
  EXPECT_EQ(resolve_checkpoint(root.path()), step);
  EXPECT_NE(input_error([&] { resolve_checkpoint(root / "absent"); }).find("absent"), std::string::npos);
}

TEST(CheckpointFolder, PrunesTheOldest) {
  const TemporaryFolder root;
  for (const std::int64_t step : {10, 20, 30, 40}) make_step(root.path(), step);
  EXPECT_EQ(prune_checkpoints(root.path(), 3), (std::vector<std::int64_t>{10}));
  EXPECT_EQ(prune_checkpoints(root.path(), 9), (std::vector<std::int64_t>{}));
  EXPECT_EQ(names(root.path()), (Names{"step-00000020", "step-00000030", "step-00000040"}));
  EXPECT_THROW(prune_checkpoints(root.path(), 0), Error);
}

TEST(CheckpointFolder, KeepsTheMultiplesOfAStep) {
  const TemporaryFolder root;
  for (const std::int64_t step : {0, 15, 20, 30, 40, 45, 50}) make_step(root.path(), step);
  EXPECT_EQ(prune_checkpoints(root.path(), 2, 20), (std::vector<std::int64_t>{15, 30}));
  EXPECT_EQ(prune_checkpoints(root.path(), 1, 15), (std::vector<std::int64_t>{20, 40}));
  EXPECT_EQ(names(root.path()), (Names{"step-00000000", "step-00000045", "step-00000050"}));
}

using Steps = std::vector<std::int64_t>;

Steps steps_of(const std::vector<StepFolder>& folders) {
  Steps steps;
  for (const StepFolder& folder : folders) steps.push_back(folder.step);
  return steps;
}

TEST(CheckpointFolder, SetAsideFoldersAreCompleteAndHidden) {
  const TemporaryFolder root;
  for (const std::int64_t step : {10, 20, 30, 40}) make_step(root.path(), step, std::to_string(step));
  EXPECT_EQ(set_aside_after(root.path(), 25), (Steps{40, 30}));
  EXPECT_EQ(steps_of(list_checkpoints(root.path())), (Steps{10, 20}));
  EXPECT_EQ(latest_checkpoint(root.path())->step, 20);
  const std::vector<StepFolder> aside = list_set_aside(root.path());
  EXPECT_EQ(steps_of(aside), (Steps{30, 40}));
  EXPECT_EQ(slurp(aside[1].path / "manifest.json"), "40");
  EXPECT_EQ(resolve_checkpoint(aside[0].path), aside[0].path);
  EXPECT_EQ(set_aside_after(root.path(), 25), Steps{});
  EXPECT_EQ(prune_checkpoints(root.path(), 1), Steps{10});
  make_step(root.path(), 25);  // a writer ignores the folders that are set aside
  EXPECT_EQ(steps_of(list_set_aside(root.path())), (Steps{30, 40}));
  EXPECT_EQ(remove_set_aside(root.path()), (Steps{30, 40}));
  EXPECT_EQ(names(root.path()), (Names{"step-00000020", "step-00000025"}));
}

// Two consecutive runs resumed, crashed, and set aside the same step.
TEST(CheckpointFolder, AStepMayBeSetAsideTwice) {
  const TemporaryFolder root;
  for (const char* text : {"old", "new"}) {
    make_step(root.path(), 20, text);
    EXPECT_EQ(set_aside_after(root.path(), 10), Steps{20});
  }
  EXPECT_EQ(steps_of(list_set_aside(root.path())), (Steps{20, 20}));
  EXPECT_EQ(remove_set_aside(root.path()), (Steps{20, 20}));
  EXPECT_EQ(names(root.path()), Names{});
}

TEST(CheckpointFolder, RestoresSetAsideFolders) {
  const TemporaryFolder root;
  make_step(root.path(), 20, "old");
  set_aside_after(root.path(), 10);
  make_step(root.path(), 20, "new");
  restore_set_aside(root / "step-00000020");  // is not set aside
  EXPECT_EQ(slurp(root / "step-00000020/manifest.json"), "new");
  restore_set_aside(list_set_aside(root.path())[0].path);
  EXPECT_EQ(slurp(root / "step-00000020/manifest.json"), "old");
  const std::vector<StepFolder> aside = list_set_aside(root.path());
  ASSERT_EQ(steps_of(aside), Steps{20});
  EXPECT_EQ(slurp(aside[0].path / "manifest.json"), "new");
}

// A crash left a replaced checkpoint and its successor between two renames. Other tokens belong to other writers.
TEST(CheckpointFolder, AReplacedFolderCountsUntilItsSuccessorHasItsName) {
  const TemporaryFolder root;
  const auto crash = [&](const std::string& name) {
    for (const auto& [kind, text] : {std::pair{".aside-", "old"}, {".partial-", "new"}}) {
      fs::create_directory(root / (name + kind + "0123456789abcdef"));
      spill(root / (name + kind + "0123456789abcdef") / "manifest.json", text);
    }
  };
  const fs::path replaced = root / "step-00000020.aside-0123456789abcdef";
  make_step(root.path(), 10);
  crash("step-00000020");
  fs::create_directory(root / "step-00000030.aside-0123456789abcdef");
  spill(root / "step-00000030.aside-0123456789abcdef/manifest.json", "x");
  EXPECT_EQ(latest_checkpoint(root.path())->path, replaced);
  EXPECT_EQ(resolve_checkpoint(root.path()), replaced);
  EXPECT_EQ(steps_of(list_set_aside(root.path())), Steps{30});
  EXPECT_EQ(remove_set_aside(root.path()), Steps{30});

  restore_set_aside(replaced);  // a run resumes from this checkpoint
  EXPECT_EQ(slurp(latest_checkpoint(root.path())->path / "manifest.json"), "old");
  EXPECT_EQ(latest_checkpoint(root.path())->path, root / "step-00000020");
  make_step(root.path(), 30);
  EXPECT_EQ(names(root.path()), (Names{"step-00000010", "step-00000020", "step-00000030"}));

  fs::remove_all(root / "step-00000020");
  crash("step-00000020");
  EXPECT_EQ(set_aside_after(root.path(), 10), (Steps{30, 20}));  // a run resumes from an earlier checkpoint
  EXPECT_EQ(latest_checkpoint(root.path())->step, 10);
  EXPECT_EQ(steps_of(list_set_aside(root.path())), (Steps{20, 30}));

  crash("model");
  make_step(root.path(), 40);
  EXPECT_FALSE(fs::exists(root / "model"));
  { PartialFolder other(root / "model"); }
  EXPECT_EQ(slurp(root / "model/manifest.json"), "old");
  EXPECT_FALSE(fs::exists(root / "model.partial-0123456789abcdef"));
}

TEST(CheckpointFolder, TheErrorNamesASetAsideFolderIfThereIsNoOther) {
  const TemporaryFolder root;
  make_step(root / "checkpoints", 20);
  set_aside_after(root / "checkpoints", 10);
  const std::string path = list_set_aside(root / "checkpoints")[0].path;
  for (const fs::path& folder : {root.path(), root / "checkpoints"})
    EXPECT_NE(input_error([&] { resolve_checkpoint(folder); }).find(path), std::string::npos);
}

TEST(CheckpointFolder, AnImpossiblePathIsNamedInTheError) {
  const TemporaryFolder root;
  spill(root / "file", "x");
  try {
    PartialFolder folder(root / "file/step-00000001");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("file/step-00000001"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::checkpoint
