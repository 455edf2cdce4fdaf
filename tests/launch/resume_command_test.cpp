#include "tessera/launch/resume_command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "tessera/settings/settings.h"
#include "tests/settings/config_test_support.h"

namespace tessera::launch {
namespace {

const rendezvous::Launch kAlone;

settings::ResolvedRun resolved(std::vector<std::string> flags) {
  for (const auto& [flag, value] : {std::pair{"--model", "m"}, {"--data", "d"}, {"--steps", "9"}})
    if (std::ranges::find(flags, flag) == flags.end()) flags.insert(flags.end(), {flag, value});
  const auto model = std::make_shared<models::LlamaConfig>(models::DecoderConfig{.max_position_embeddings = 8});
  return settings::resolve(settings::parse(flags), model, settings::Use::train);
}

TEST(ResumeCommand, NamesTheFolderAndSettingsThatACheckpointDoesNotStore) {
  const settings::ResolvedRun run = resolved(
      {"--model", "m", "--data",       "d",  "--steps", "100", "--schedule-steps", "200", "--lr",  "0.01",  "--tp", "2",
       "--gtp",   "3", "--save-every", "10", "--zero",  "off", "--timeout-s",      "2.5", "--out", "runs/a"});
  EXPECT_EQ(resume_command(run, "build/tessera", kAlone),
            "build/tessera train --resume latest --out runs/a --timeout-s 2.5");
}

TEST(ResumeCommand, TakesTheLatestCheckpointForAnyStart) {
  const settings::ResolvedRun run = resolved({"--resume", "runs/a/checkpoints/step-00000004", "--out", "runs/b"});
  EXPECT_EQ(resume_command(run, "tessera", kAlone), "tessera train --resume latest --out runs/b");
}

TEST(ResumeCommand, DoesNotTraceAStepAgain) {
  EXPECT_EQ(resume_command(resolved({"--trace-step", "3", "--out", "a"}), "tessera", kAlone),
            "tessera train --resume latest --out a");
}

TEST(ResumeCommand, IsParsedToTheSameSettings) {
  const std::vector<std::string> flags{"--threads",        "2",     "--gather-budget", "300MB", "--coalesce",     "1",
                                       "--debug-suppress", "3:2,4", "--deterministic", "on",    "--debug-delays", "7",
                                       "--timeout-s",      "0.125", "--out",           "a"};
  const settings::TrainConfig config = settings::parse(flags);
  std::istringstream text(resume_command(resolved(flags), "tessera", kAlone));
  std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
  settings::TrainConfig again = settings::parse({words.begin() + 2, words.end()});
  EXPECT_EQ(again.resume, "latest");
  again.resume = config.resume;
  EXPECT_EQ(to_json(again), to_json(config));
}

TEST(ResumeCommand, CallsTheLauncherAgain) {
  const settings::ResolvedRun run = resolved({"--out", "a", "--backend", "mpi"});
  const std::string end = "tessera train --resume latest --out a";
  EXPECT_EQ(resume_command(run, "tessera", {.launcher = "mpirun", .rank = 0, .size = 3}), "mpirun -n 3 " + end);
  EXPECT_EQ(resume_command(run, "tessera", {.launcher = "srun", .rank = 0, .size = 8}), "srun -n 8 " + end);
  EXPECT_EQ(resume_command(run, "tessera", {.launcher = "torchrun", .rank = 0, .size = 4}),
            "torchrun --no-python --nproc-per-node 4 " + end);
  EXPECT_EQ(resume_command(run, "tessera", {.launcher = "torchrun", .is_self_started = true, .size = 4}), end);
}

TEST(ResumeCommand, QuotesWordsForTheShell) {
  EXPECT_EQ(shell_word("runs/a-b_c.1"), "runs/a-b_c.1");
  EXPECT_EQ(shell_word("my runs/$a"), "'my runs/$a'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(resume_command(resolved({"--out", "my runs"}), "/my programs/tessera", kAlone),
            "'/my programs/tessera' train --resume latest --out 'my runs'");
}

}  // namespace
}  // namespace tessera::launch
