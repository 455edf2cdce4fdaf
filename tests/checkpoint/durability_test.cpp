// Checks the order of system calls. With this order, the disk has a complete checkpoint at every time at which the
// machine may stop. In this binary, the following functions replace functions of the C library.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <regex>
#include <set>

#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using Calls = std::vector<std::string>;

// Records the calls during its lifetime, in order: "sync FILE", "rename FROM TO", "exchange FROM TO", "remove FILE".
// The names have no folders, and no digits that make a name unique. Kills the process instead of call number `renames`
// of rename(), counted from 0; -1: never.
class Recorder {
 public:
  explicit Recorder(bool can_exchange = true, int renames = -1) : can_exchange_(can_exchange), renames_left_(renames) {
    current() = this;
  }
  ~Recorder() { current() = nullptr; }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  static std::atomic<Recorder*>& current() {
    static std::atomic<Recorder*> recorder = nullptr;
    return recorder;
  }
  void add(const std::string& what, const fs::path& from, const fs::path& to = {}) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(what + " " + name_of(from) + (to.empty() ? "" : " " + name_of(to)));
  }
  void count_rename() {
    if (renames_left_-- == 0) ::kill(::getpid(), SIGKILL);
  }
  bool can_exchange() const { return can_exchange_; }
  const Calls& calls() const { return calls_; }

  // Returns the position of a call that is made exactly once.
  std::size_t place_of(const std::string& call) const {
    EXPECT_EQ(std::ranges::count(calls_, call), 1) << call << " in " << ::testing::PrintToString(calls_);
    return static_cast<std::size_t>(std::ranges::find(calls_, call) - calls_.begin());
  }
  // Expects each of these calls once and in this order. Other calls may be made between them.
  void expect_in_order(const Calls& calls) const {
    EXPECT_TRUE(std::ranges::is_sorted(calls, {}, [this](const std::string& call) { return place_of(call); }))
        << ::testing::PrintToString(calls) << " in " << ::testing::PrintToString(calls_);
  }

 private:
  static std::string name_of(const fs::path& path) {
    static const std::regex unique("-[0-9a-f]{16}$");
    return std::regex_replace(path.filename().string(), unique, "");
  }

  const bool can_exchange_;
  int renames_left_;
  std::mutex mutex_;
  Calls calls_;
};

template <typename Call>
Call real(const char* name) {
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
}

void record(const std::string& what, const fs::path& from, const fs::path& to = {}) {
  if (Recorder* recorder = Recorder::current()) recorder->add(what, from, to);
}

}  // namespace
}  // namespace tessera::checkpoint

extern "C" {

int fsync(int file) {
  using namespace tessera::checkpoint;
  if (Recorder::current() != nullptr) record("sync", fs::read_symlink("/proc/self/fd/" + std::to_string(file)));
  return real<int (*)(int)>("fsync")(file);
}
int rename(const char* from, const char* to) noexcept {
  using namespace tessera::checkpoint;
  if (Recorder* recorder = Recorder::current()) recorder->count_rename();
  record("rename", from, to);
  return real<int (*)(const char*, const char*)>("rename")(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  using namespace tessera::checkpoint;
  if (const Recorder* recorder = Recorder::current(); recorder != nullptr && !recorder->can_exchange()) {
    errno = EINVAL;
    return -1;
  }
  record("exchange", from, to);
  return real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from, to_folder, to,
                                                                                  flags);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  using namespace tessera::checkpoint;
  record("remove", path);
  return real<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags);
}

}  // extern "C"

namespace tessera::checkpoint {
namespace {

void write(const fs::path& folder) {
  Random random(1);
  const std::vector<TestTensor> tensors = sample_tensors();
  const Layouts layouts = random_layouts(random, tensors, 2);
  on_ranks(2, [&](comm::Communicator& group) { write_as(group, folder, tensors, layouts); });
}

// Syncs every file, then the folder with the files. Then renames the folder, and syncs the parent folder.
TEST(Durability, EveryFileIsOnTheDiskBeforeTheCheckpointHasItsName) {
  const TemporaryFolder root;
  const fs::path step = root / "checkpoints" / "step-00000010";
  const Recorder recorder;
  write(step);
  const std::size_t listed = recorder.place_of("sync step-00000010.partial");
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(step)) {
    EXPECT_LT(recorder.place_of("sync " + entry.path().filename().string()), listed) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 4u);  // two ranks' parts, the manifest and its checksum
  const std::size_t named = recorder.place_of("rename step-00000010.partial step-00000010");
  EXPECT_LT(listed, named);
  EXPECT_LT(named, recorder.place_of("sync checkpoints"));
}

// The old checkpoint is complete until the new one has its name. The old checkpoint is removed last.
TEST(Durability, ANewCheckpointTakesThePlaceOfAnOldOneAtOnce) {
  const TemporaryFolder root;
  const fs::path step = root / "checkpoints" / "step-00000010";
  write(step);
  for (const bool can_exchange : {true, false}) {
    SCOPED_TRACE(can_exchange);
    const Recorder recorder(can_exchange);
    write(step);
    const std::string set_aside = "rename step-00000010 step-00000010.aside";
    const std::string named =
        can_exchange ? "exchange step-00000010.partial step-00000010" : "rename step-00000010.partial step-00000010";
    recorder.expect_in_order({"sync step-00000010.partial", named, "sync checkpoints", "remove manifest.json"});
    if (can_exchange) continue;
    recorder.expect_in_order({"sync step-00000010.partial", set_aside});
    EXPECT_EQ(recorder.place_of(named), recorder.place_of(set_aside) + 1);
  }
}

// The process is killed before each rename of a replacement on a file system that cannot exchange two names.
TEST(Durability, ACrashBetweenTheRenamesOfAReplacementLosesNoCheckpoint) {
  for (int renames = 0; renames < 3; ++renames) {
    SCOPED_TRACE(renames);
    const TemporaryFolder root;
    make_step(root.path(), 10);
    make_step(root.path(), 20, "old");
    const int status = in_child([&] {
      const Recorder recorder(/*can_exchange=*/false, renames);
      make_step(root.path(), 20, "new");
    });
    ASSERT_TRUE(WIFSIGNALED(status));
    const std::string expected = renames < 2 ? "old" : "new";
    const auto latest = latest_checkpoint(root.path());
    ASSERT_TRUE(latest && latest->step == 20);
    EXPECT_EQ(slurp(latest->path / "manifest.json"), expected);
    make_step(root.path(), 30);
    EXPECT_EQ(slurp(root / "step-00000020/manifest.json"), expected);
    remove_set_aside(root.path());  // the next resumed run
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root.path())) names.insert(entry.path().filename().string());
    EXPECT_EQ(names, (std::set<std::string>{"step-00000010", "step-00000020", "step-00000030"}));
  }
}

// If a checkpoint were removed under its own name and the machine stopped during the removal, a damaged checkpoint
// would have this name.
TEST(Durability, ACheckpointLosesItsNameBeforeItsFiles) {
  const TemporaryFolder root;
  const fs::path checkpoints = root / "checkpoints";
  for (const char* name : {"step-00000010", "step-00000020", "step-00000030"}) write(checkpoints / name);
  set_aside_after(checkpoints, 20);
  for (const bool prunes : {true, false}) {
    const Recorder recorder;
    if (prunes)
      prune_checkpoints(checkpoints, 1);
    else
      remove_set_aside(checkpoints);
    recorder.expect_in_order(
        {prunes ? "rename step-00000010 step-00000010.partial" : "rename step-00000030.aside step-00000030.partial",
         "sync checkpoints", "remove manifest.json"});
  }
}

TEST(Durability, CheckpointsThatAreSetAsideKeepTheirNewNames) {
  const TemporaryFolder root;
  const fs::path checkpoints = root / "checkpoints";
  for (const char* name : {"step-00000010", "step-00000020", "step-00000030"}) write(checkpoints / name);
  {
    const Recorder recorder;
    set_aside_after(checkpoints, 10);
    EXPECT_EQ(recorder.calls(), (Calls{"rename step-00000030 step-00000030.aside",
                                       "rename step-00000020 step-00000020.aside", "sync checkpoints"}));
  }
  const Recorder recorder;
  restore_set_aside(list_set_aside(checkpoints).front().path);
  EXPECT_EQ(recorder.calls(), (Calls{"rename step-00000020.aside step-00000020", "sync checkpoints"}));
}

}  // namespace
}  // namespace tessera::checkpoint
