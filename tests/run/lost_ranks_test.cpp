// Tests the dead places and the command of a run that continues without ranks.
#include "tessera/launch/lost_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/run/rank_watch.h"
#include "tessera/settings/places.h"
#include "tests/base/files.h"
#include "tests/plan/plan_testing.h"
#include "tests/settings/config_test_support.h"

namespace tessera::run {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

models::ModelConfigPtr lost_model() {
  return plan::config_of(plan::even_model());
}

settings::ResolvedRun resolved(std::vector<std::string> flags) {
  for (const char* word : {"--model", "m", "--data", "d", "--steps", "9", "--seq-len", "4"}) flags.emplace_back(word);
  if (std::ranges::find(flags, "--out") == flags.end()) flags.insert(flags.end(), {"--out", "runs/a"});
  return settings::resolve(settings::parse(flags), lost_model(), settings::Use::train);
}

std::string command_of(const std::vector<std::string>& flags, const std::vector<int>& ranks,
                       launch::CommandPlace place = launch::CommandPlace()) {
  place.program = "tessera";
  return launch::lost_ranks(resolved(flags), ranks, place).command;
}

TEST(LostRanks, BecomeDeadPlacesOfTheMesh) {
  EXPECT_EQ(command_of({"--tp", "2", "--gtp", "2", "--dp", "2", "--timeout-s", "5", "--save-every", "3"}, {5}),
            "tessera train --resume latest --out runs/a --tp 2 --gtp 2 --dp 2 --dead dp1.gtp0:1 --timeout-s 5.0");
  // Ranks are the active places in order. Places that are dead, idle or spare stay without a rank.
  EXPECT_EQ(command_of({"--tp", "3", "--gtp", "2", "--dp", "2", "--dead", "dp0:0;dp1.gtp1:2", "--idle", "dp0.gtp1:2"},
                       {0, 4}),
            "tessera train --resume latest --out runs/a --tp 3 --gtp 2 --dp 2 --dead "
            "'dp0.gtp0:0,1;dp1.gtp0:0;dp1.gtp1:2' --idle dp0.gtp1:2");
}

TEST(LostRanks, KeepTheSettingsOfTheMesh) {
  const settings::ResolvedRun config = resolved({"--tp", "4", "--dp", "2", "--dead", "dp0:2", "--tp-spares", "1",
                                                 "--reduced-batch", "8", "--global-batch", "24", "--zero", "off"});
  const settings::ResolvedRun one = launch::without_ranks(config, {4});  // dp 1
  EXPECT_EQ(std::tuple(to_text(one->mesh.unused.dead), one->mesh.unused.tp_spares, one->mesh.ranks),
            std::tuple("dp0.gtp0:2;dp1.gtp0:1", "1", 6));
  EXPECT_EQ(one->mesh.unused.reduced_batch, "auto");  // both replicas are reduced, and 2 x 8 is not 24
  const settings::ResolvedRun two = launch::without_ranks(config, {0});
  EXPECT_EQ(std::tuple(to_text(two->mesh.unused.dead), two->mesh.unused.tp_spares, two->mesh.ranks),
            std::tuple("dp0.gtp0:0,2", "auto", 6));
  EXPECT_EQ(two->mesh.unused.reduced_batch, "8");
}

// Formats with tiles need whole tp groups.
TEST(LostRanks, TakeTheirTpGroupOrReplicaAlongWhereFormatsNeedIt) {
  const std::vector<std::string> tiles{"--dtype", "bf16", "--wire-format", "mxfp8", "--tp", "2", "--dp", "2"};
  std::vector<std::string> flags = tiles;
  flags.insert(flags.end(), {"--gtp", "2"});
  const settings::ResolvedRun group = launch::without_ranks(resolved(flags), {1});
  EXPECT_EQ(std::tuple(to_text(group->mesh.unused.dead), to_text(group->mesh.unused.idle), group->mesh.ranks),
            std::tuple("dp0.gtp0:1", "dp0.gtp0:0", 6));
  const settings::ResolvedRun replica = launch::without_ranks(resolved(tiles), {2});
  EXPECT_EQ(std::tuple(to_text(replica->mesh.unused.dead), to_text(replica->mesh.unused.idle), replica->mesh.ranks),
            std::tuple("dp1.gtp0:0", "dp1.gtp0:1", 2));
}

TEST(LostRanks, SwitchOffWhatDeadPlacesDoNotSupport) {
  EXPECT_EQ(command_of({"--gtp", "4", "--reduce-order", "hierarchical", "--ranks-per-node", "2"}, {3}),
            "tessera train --resume latest --out runs/a --gtp 4 --dp 1 --dead dp0.gtp3:0 --reduce-order sequential");
  EXPECT_EQ(command_of({"--gtp", "2", "--backend", "nccl", "--cuda-graph", "on"}, {1}),
            "tessera train --resume latest --out runs/a --gtp 2 --dp 1 --dead dp0.gtp1:0 --cuda-graph off");
}

TEST(LostRanks, CallTheLauncherWithTheRemainingRanks) {
  const std::vector<std::string> mesh{"--tp", "2", "--dp", "2", "--backend", "mpi"};
  EXPECT_THAT(command_of(mesh, {2}, {.launch = {.launcher = "mpirun", .size = 4}}),
              ::testing::StartsWith("mpirun -n 3 tessera train "));
  std::vector<std::string> gpus{"--tp", "2", "--dp", "2", "--backend", "nccl"};
  // A process for each place keeps the GPU of the place.
  EXPECT_THAT(command_of(gpus, {2}, {.launch = {.launcher = "torchrun", .size = 4}}),
              ::testing::StartsWith("torchrun --no-python --nproc-per-node 4 tessera train "));
  const rendezvous::Launch own{.launcher = "torchrun", .is_self_started = true, .size = 4};
  EXPECT_THAT(command_of(gpus, {2}, {.launch = own, .devices = 8}),
              ::testing::StartsWith("CUDA_VISIBLE_DEVICES=0,1,3 tessera train "));
  EXPECT_THAT(command_of(gpus, {0}, {.launch = own, .devices = 4, .visible = "7,5,GPU-a,1"}),
              ::testing::StartsWith("CUDA_VISIBLE_DEVICES=5,GPU-a,1 tessera train "));
  gpus.insert(gpus.end(), {"--dead", "dp0:0"});
  EXPECT_THAT(command_of(gpus, {0}, {.launch = own, .devices = 4}),
              ::testing::StartsWith("CUDA_VISIBLE_DEVICES=2,3 tessera train "));
  EXPECT_THAT(command_of(gpus, {0}, {.launch = own, .devices = 3}),
              ::testing::StartsWith("CUDA_VISIBLE_DEVICES=1,2 tessera train "));
}

TEST(LostRanks, NameTheCheckpointAndAreWritten) {
  const base::TempFolder folder;
  const settings::ResolvedRun config = resolved({"--gtp", "2", "--out", folder.path().string()});
  launch::LostRanks lost = launch::lost_ranks(config, {1}, {.program = "tessera"});
  EXPECT_THAT(launch::lost_ranks_text(lost),
              HasSubstr("tessera: rank 1 has ended during the run; dead places: dp0.gtp1:0\n"
                        "tessera: to continue from step 0 (no checkpoint is complete) with 1 "
                        "rank:\n  tessera train --resume latest"));
  // A run that has started from another run's checkpoint and has saved none starts from there again.
  lost = launch::lost_ranks(config, {1}, {.program = "tessera"}, "b/checkpoints/step-00000004");
  EXPECT_THAT(lost.command, HasSubstr("--resume b/checkpoints/step-00000004 --out"));
  launch::write_lost_ranks(lost, folder.path());
  const nlohmann::json written = base::read_json_file(folder / "resume-without.json");
  EXPECT_EQ(written["dead"], nlohmann::json::parse(R"({"dp0.gtp1": [0]})"));
  EXPECT_EQ(written["command"], lost.command);
  EXPECT_EQ(written["ranks"], 1);
}

TEST(LostRanks, AreRefusedWhereNoMeshIsLeft) {
  const auto text = [](const std::vector<std::string>& flags, const std::vector<int>& ranks) {
    return launch::lost_ranks_text(launch::lost_ranks(resolved(flags), ranks, {}));
  };
  EXPECT_THAT(text({"--gtp", "2"}, {0, 1}),
              HasSubstr("the run cannot continue without them: --dead: no place of tp 1 x gtp 2 x dp 1 is left"));
  EXPECT_THAT(text({"--tp", "2", "--dtype", "bf16", "--wire-format", "mxfp8"}, {0}),
              HasSubstr("the run cannot continue without it: --wire-format: got mxfp8 with place dp0.gtp0:0 unused"));
  EXPECT_THAT(
      [] {
        command_of({"--gtp", "2"}, {2});
      },
      ThrowsMessage<InputError>(HasSubstr("--lost: got rank 2, expected one below 2")));
}

TEST(LostRanks, AreReadFromTheFolderOfARun) {
  const base::TempFolder folder;
  EXPECT_THROW(launch::lost_ranks_of_run(folder.path(), {0}, "tessera"), InputError);
  const settings::ResolvedRun config =
      resolved({"--gtp", "3", "--backend", "mpi", "--keep", "2", "--out", folder.path().string()});
  const nlohmann::json state{{"config", to_json(config.stored())}, {"model", lost_model()->to_json()}};
  std::ofstream(folder / "config.json") << state;
  EXPECT_EQ(launch::lost_ranks_of_run(folder.path(), {1}, "tessera").command,
            "mpirun -n 2 tessera train --resume latest --out " + folder.path().string() +
                " --gtp 3 --dp 1 --dead dp0.gtp1:0 --keep 2");
}

TEST(RankWatch, ErrorsOfAGpuAreNotLacksOfMemory) {
  EXPECT_TRUE(is_device_failure("cudaStreamSynchronize(s): uncorrectable ECC error (cudaErrorECCUncorrectable)"));
  EXPECT_TRUE(is_device_failure("CUDA error: an illegal memory access was encountered"));
  EXPECT_FALSE(is_device_failure("cudaMalloc(&p, n): out of memory (cudaErrorMemoryAllocation)"));
  EXPECT_FALSE(is_device_failure("step 4: the gradient was not finite for 10 steps in a row"));
}

}  // namespace
}  // namespace tessera::run
