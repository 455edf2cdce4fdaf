#include "tessera/launch/resume_command.h"

#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "tessera/settings/settings.h"
#include "tessera/settings/text/parse.h"

namespace tessera::launch {
namespace {

const rendezvous::Launch kAlone;

settings::TrainConfig parsed(const std::vector<std::string>& flags) {
  return settings::parse_train_flags(flags).config;
}

TEST(ResumeCommand, NamesTheFolderAndSettingsThatACheckpointDoesNotStore) {
  const settings::TrainConfig config = parsed(
      {"--model", "m", "--data",       "d",  "--steps", "100", "--schedule-steps", "200", "--lr",  "0.01",  "--tp", "2",
       "--gtp",   "3", "--save-every", "10", "--zero",  "off", "--timeout-s",      "2.5", "--out", "runs/a"});
  EXPECT_EQ(resume_command(config, "build/tessera", kAlone),
            "build/tessera train --resume latest --out runs/a --timeout-s 2.5");
}

TEST(ResumeCommand, TakesTheLatestCheckpointForAnyStart) {
  const settings::TrainConfig config = parsed({"--resume", "runs/a/checkpoints/step-00000004", "--out", "runs/b"});
  EXPECT_EQ(resume_command(config, "tessera", kAlone), "tessera train --resume latest --out runs/b");
}

TEST(ResumeCommand, DoesNotTraceAStepAgain) {
  EXPECT_EQ(resume_command(parsed({"--trace-step", "3", "--out", "a"}), "tessera", kAlone),
            "tessera train --resume latest --out a");
}

TEST(ResumeCommand, IsParsedToTheSameSettings) {
  const std::vector<std::string> flags{"--threads",        "2",     "--gather-budget", "300MB", "--coalesce",     "1",
                                       "--debug-suppress", "3:2,4", "--deterministic", "on",    "--debug-delays", "7",
                                       "--timeout-s",      "0.125", "--out",           "a"};
  const settings::TrainConfig config = parsed(flags);
  std::istringstream text(resume_command(config, "tessera", kAlone));
  std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
  settings::TrainConfig again = parsed({words.begin() + 2, words.end()});
  EXPECT_EQ(again.resume, "latest");
  again.resume = config.resume;
  EXPECT_EQ(to_json(again), to_json(config));
}

TEST(ResumeCommand, CallsTheLauncherAgain) {
  const settings::TrainConfig config = parsed({"--out", "a", "--backend", "mpi"});
  const std::string end = "tessera train --resume latest --out a";
  EXPECT_EQ(resume_command(config, "tessera", {.launcher = "mpirun", .rank = 0, .size = 3}), "mpirun -n 3 " + end);
  EXPECT_EQ(resume_command(config, "tessera", {.launcher = "srun", .rank = 0, .size = 8}), "srun -n 8 " + end);
  EXPECT_EQ(resume_command(config, "tessera", {.launcher = "torchrun", .rank = 0, .size = 4}),
            "torchrun --no-python --nproc-per-node 4 " + end);
  EXPECT_EQ(resume_command(config, "tessera", {.launcher = "torchrun", .is_self_started = true, .size = 4}), end);
}

TEST(ResumeCommand, QuotesWordsForTheShell) {
  EXPECT_EQ(shell_word("runs/a-b_c.1"), "runs/a-b_c.1");
  EXPECT_EQ(shell_word("my runs/$a"), "'my runs/$a'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(resume_command(parsed({"--out", "my runs"}), "/my programs/tessera", kAlone),
            "'/my programs/tessera' train --resume latest --out 'my runs'");
}

}  // namespace
}  // namespace tessera::launch
