// Tests the delayed scales of a trainer after it loads a checkpoint.
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/train/trainer_checkpoint.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

RunOptions fp8_options() {
  return {.model = odd_model(), .dtype = quant::DType::bf16, .blocks = 3, .steps = 4, .products = quant::Format::fp8};
}

// Expects that steps before a checkpoint is loaded do not change the steps after it.
void expect_no_trace_of_earlier_steps(const std::filesystem::path& checkpoint) {
  RunOptions fresh = fp8_options(), used = fp8_options();
  fresh.left_out = {0, 1};
  fresh.before_step = [&](Trainer& trainer, int step) {
    if (step == 2) load_trainer(trainer, checkpoint::CheckpointReader(checkpoint));
  };
  used.after_step = [&](Trainer& trainer, int step) {
    if (step == 1) load_trainer(trainer, checkpoint::CheckpointReader(checkpoint));
  };
  const RunResult expected = run(fresh), got = run(used);
  EXPECT_EQ(got.tensors, expected.tensors);
  EXPECT_EQ(got.scales, expected.scales);
}

TEST(ScalesOfACheckpoint, ReplaceATrainersScales) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tessera_scales_checkpoint";
  for (const quant::Format products : {quant::Format::bf16, quant::Format::fp8}) {
    SCOPED_TRACE(name_of(products));
    std::filesystem::remove_all(folder);
    RunOptions writer = fp8_options();
    writer.steps = 2;
    writer.products = products;
    writer.at_end = [&](Trainer& trainer) { save_trainer(trainer, folder, 2, nlohmann::json::object()); };
    run(writer);
    expect_no_trace_of_earlier_steps(folder);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera::train::testing
