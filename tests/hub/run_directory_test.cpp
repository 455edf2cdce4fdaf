#include "tessera/hub/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/settings/config_test_support.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(RunDirectory, IsMadeWithItsParents) {
  const base::TempFolder folder;
  const RunDirectory run = create_run_directory(folder / "a/b/run", "");
  EXPECT_TRUE(fs::is_directory(folder / "a/b/run/checkpoints"));
  EXPECT_EQ(run.metrics(), folder / "a/b/run/metrics.jsonl");
  EXPECT_EQ(std::distance(fs::directory_iterator(run.root()), fs::directory_iterator()), 1);
  EXPECT_TRUE(fs::is_empty(run.checkpoints()));
}

TEST(RunDirectory, MayExistWithoutARun) {
  const base::TempFolder folder;
  std::ofstream(folder / "notes.txt") << "x";
  EXPECT_NO_THROW(check_run_directory(folder.path(), ""));
  EXPECT_NO_THROW(create_run_directory(folder.path().string() + "/", ""));
  EXPECT_NO_THROW(create_run_directory(folder.path(), "")) << "the folder of a run that failed as it began";
}

TEST(RunDirectory, ThatHoldsAnotherRunIsRefusedUnlessResuming) {
  for (const char* name : {"config.json", "metrics.jsonl", "summary.json", "checkpoints"}) {
    const base::TempFolder folder;
    const fs::path out = folder / "run";
    fs::create_directories(out);
    if (std::string(name) == "checkpoints")
      fs::create_directories(out / name / "step-00000020");
    else
      std::ofstream(out / name) << "{}";
    const std::string message = base::refusal([&] { create_run_directory(out, ""); });
    EXPECT_THAT(message, HasSubstr("--out"));
    EXPECT_THAT(message, HasSubstr(out.string()));
    EXPECT_THAT(message, HasSubstr("another run"));
    EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 1) << "something was written";
    EXPECT_NO_THROW(check_run_directory(out, "latest"));
    EXPECT_NO_THROW(check_run_directory(out, (out / "checkpoints/step-00000020").string()));
    EXPECT_NO_THROW(check_run_directory(out, (out / "../run/checkpoints/step-00000020/").string()));
    EXPECT_THAT([&] { check_run_directory(out, (folder / "other/checkpoints/step-00000020").string()); },
                ThrowsMessage<InputError>(HasSubstr("holds another run")));
    EXPECT_THAT([&] { check_run_directory(out, (folder / "run2/checkpoints/step-00000020").string()); },
                ThrowsMessage<InputError>(HasSubstr("holds another run")));
  }
}

TEST(RunDirectory, WhoseFilesCannotBeReplacedIsRefused) {
  for (const char* name : {"config.json", "metrics.jsonl", "summary.json"}) {
    const base::TempFolder folder;
    fs::create_directories(folder / name);
    EXPECT_THAT(base::refusal([&] { check_run_directory(folder.path(), "latest"); }),
                HasSubstr((folder / name).string() + "' is a folder"));
  }
  const base::TempFolder folder;
  std::ofstream(folder / "checkpoints") << "x";
  EXPECT_THAT(base::refusal([&] { check_run_directory(folder.path(), "latest"); }),
              HasSubstr((folder / "checkpoints").string() + "' is a file"));
}

TEST(RunDirectory, ThatCannotBeMadeIsRefusedAndNothingIsLeft) {
  const base::TempFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_THAT(base::refusal([&] { create_run_directory(folder / "file", ""); }), HasSubstr("is a file"));
  for (const fs::path& out : {folder / "file/run", fs::path("/proc/no/run"), fs::path("/dev/null/run")}) {
    const std::string message = base::refusal([&] { create_run_directory(out, ""); });
    EXPECT_THAT(message, HasSubstr("--out"));
    EXPECT_THAT(message, HasSubstr(out.string()));
  }
  const std::string long_name(300, 'n');  // longer than file systems allow
  EXPECT_THAT([&] { create_run_directory(folder / ("a/" + long_name), ""); },
              ThrowsMessage<InputError>(HasSubstr("File name too long")));
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST(RunDirectory, AtABrokenLinkIsRefusedWithTheTarget) {
  const base::TempFolder folder;
  fs::create_symlink("/absent/disk", folder / "link");
  fs::create_directories(folder / "run");
  fs::create_symlink("/absent/disk", folder / "run/checkpoints");
  for (const fs::path& out : {folder / "link", folder / "link/", folder / "link/below/run", folder / "run"}) {
    const std::string message = base::refusal([&] { create_run_directory(out, ""); });
    EXPECT_THAT(message, HasSubstr("--out: '" + folder.path().string()));
    EXPECT_THAT(message, HasSubstr("is a link to '/absent/disk', which does not exist"));
  }
  fs::create_directories(folder / "disk");
  fs::create_symlink(folder / "disk", folder / "good");
  EXPECT_NO_THROW(create_run_directory(folder / "good/run", ""));
}

TEST(RunDirectory, WithoutPermissionIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const base::TempFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT([&] { create_run_directory(folder / "run", ""); },
              ThrowsMessage<InputError>(HasSubstr("Permission denied")));
  EXPECT_THAT([&] { create_run_directory(folder.path(), ""); },
              ThrowsMessage<InputError>(HasSubstr("Permission denied")));
  fs::permissions(folder.path(), fs::perms::owner_all);
}

}  // namespace
}  // namespace tessera::hub
