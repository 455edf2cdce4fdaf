// Tests the state after a crash or with a full disk. Each scenario runs in a forked process.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

std::vector<TestTensor> tensors_of(std::uint64_t version) {
  std::vector<TestTensor> tensors = sample_tensors();
  for (TestTensor& tensor : tensors) tensor.seed += 1000 * version;
  return tensors;
}

void write_version(const fs::path& folder, std::uint64_t version, const WriteOptions& options = {}) {
  Random random(version);
  const std::vector<TestTensor> tensors = tensors_of(version);
  const Layouts layouts = random_layouts(random, tensors, 3);
  on_ranks(3, [&](comm::Communicator& group) { write_as(group, folder, tensors, layouts, options); });
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

class CheckpointKilled : public ::testing::TestWithParam<const char*> {};

// A rank is killed at some point of the write. Step 10 stays loadable, step 20 is either complete or absent, and the
// next writer removes partial folders.
TEST_P(CheckpointKilled, LeavesTheLastCheckpointLoadable) {
  const std::string stage = GetParam();
  for (const int victim : {0, 2}) {
    const TemporaryFolder root;
    const int status = in_child([&] {
      write_version(root / "step-00000010", 1);
      const WriteOptions options{.on_stage = [&](std::string_view at, int rank) {
        if (at == stage && rank == victim) ::kill(::getpid(), SIGKILL);
      }};
      write_version(root / "step-00000020", 2, options);
    });
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "stage " << stage << " was not reached";
    expect_intact(root / "step-00000010", tensors_of(1));
    const auto latest = latest_checkpoint(root.path());
    ASSERT_TRUE(latest);
    if (latest->step == 20) expect_intact(latest->path, tensors_of(2));
    if (stage == "committed") {
      EXPECT_EQ(latest->step, 20);
    }
    if (stage != "committed" && !(stage == "manifest" && victim == 2)) {
      EXPECT_EQ(latest->step, 10);
      EXPECT_EQ(entries(root.path()), 2u) << "the aside folder of the crashed run";
    }
    ASSERT_EQ(in_child([&] { write_version(root / "step-00000030", 3); }), 0);
    expect_intact(root / "step-00000030", tensors_of(3));
    EXPECT_EQ(entries(root.path()), list_checkpoints(root.path()).size());
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, CheckpointKilled,
                         ::testing::Values("created", "written", "gathered", "manifest", "committed"),
                         [](const auto& info) { return std::string(info.param); });

// The process is killed at any time while step 20 is repeatedly overwritten.
TEST(CheckpointCrash, ACompleteCheckpointExistsAtAnyTime) {
  Random random(1);
  for (int round = 0; round < 12; ++round) {
    const TemporaryFolder root;
    ASSERT_EQ(in_child([&] { write_version(root / "step-00000020", 1); }), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;)
        for (const std::uint64_t version : {2, 1}) write_version(root / "step-00000020", version);
    }
    ::usleep(static_cast<useconds_t>(pick(random, 0, 150'000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const CheckpointReader reader(root / "step-00000020");
    reader.verify();
    const TestTensor first = tensors_of(1)[0];
    std::vector<unsigned char> data(filled(first, whole(first.shape())).size());
    reader.read({first.name, first.kind, first.dtype, first.dims, whole(first.shape()), data.data()});
    expect_intact(root / "step-00000020", tensors_of(data == filled(first, whole(first.shape())) ? 1 : 2));
  }
}

// The process is killed at any time while a run repeatedly resumes from step 10 and writes step 20.
TEST(CheckpointCrash, TheLastCheckpointExistsAtAnyTimeOfAResume) {
  Random random(2);
  for (int round = 0; round < 12; ++round) {
    const TemporaryFolder root;
    ASSERT_EQ(in_child([&] { write_version(root / "step-00000010", 1); }), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) {
        set_aside_after(root.path(), 10);
        write_version(root / "step-00000020", 2);
        remove_set_aside(root.path());
      }
    }
    ::usleep(static_cast<useconds_t>(pick(random, 0, 150'000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    expect_intact(root / "step-00000010", tensors_of(1));
    for (const auto& folders : {list_checkpoints(root.path()), list_set_aside(root.path())})
      for (const StepFolder& folder : folders)
        if (folder.step == 20) expect_intact(folder.path, tensors_of(2));
    EXPECT_LE(list_set_aside(root.path()).size(), 1u);
    ASSERT_EQ(in_child([&] { write_version(root / "step-00000030", 3); }), 0);
    remove_set_aside(root.path());
    EXPECT_EQ(entries(root.path()), list_checkpoints(root.path()).size());
  }
}

// A limit on the size of files simulates a full disk: write() fails in the middle of a file.
TEST(CheckpointCrash, AFullDiskIsTheSameErrorOnEveryRankAndLeavesNoFolder) {
  const TemporaryFolder root;
  write_whole(root / "step-00000010", sample_tensors());
  const TestTensor large{"large.weight", Kind::weight, quant::DType::fp32, {1024, 1024}, 1};
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const layout::LocalLayout all = whole(large.shape());
    const Layouts layouts{{layout::LocalLayout{}, all, layout::LocalLayout{}}};  // only rank 1 writes
    std::vector<std::string> messages(3);
    on_ranks(3, [&](comm::Communicator& group) {
      try {
        write_as(group, root / "step-00000020", {large}, layouts);
      } catch (const Error& error) {
        messages[static_cast<std::size_t>(group.rank())] = error.what();
      }
    });
    const std::string& message = messages[0];
    const bool same = messages[1] == message && messages[2] == message;
    const bool clear = message.find("rank 1: cannot write") != std::string::npos &&
                       message.find("part-00001.safetensors") != std::string::npos &&
                       message.find("File too large") != std::string::npos;
    ::_exit(same && clear ? 0 : 1);
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(entries(root.path()), 1u);
  expect_intact(root / "step-00000010", sample_tensors());
}

TEST(CheckpointCrash, AFailedFolderCreationIsTheSameErrorOnEveryRank) {
  const TemporaryFolder root;
  spill(root / "file", "not a folder");
  std::vector<std::string> messages(2);
  on_ranks(2, [&](comm::Communicator& group) {
    try {
      write_as(group, root / "file/step-00000020", {}, {});
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_NE(messages[0].find("rank 0: cannot create"), std::string::npos) << messages[0];
}

}  // namespace
}  // namespace tessera::checkpoint
