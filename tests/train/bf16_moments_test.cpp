// Runs with moments in bf16. The bits do not depend on where the moments are stored.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/train/trainer_checkpoint.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train::bf16_moments {
namespace {

using quant::DType, quant::Format;
using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

RunOptions options_of(DType dtype, int tp = 1, int gtp = 1, int dp = 1) {
  return {.model = testing::odd_model(),
          .tp = tp,
          .gtp = gtp,
          .dp = dp,
          .dtype = dtype,
          .steps = 5,
          .rule = ops::make_rule({.weight_decay = 0.1, .has_bf16_moments = true})};
}

TEST(Bf16MomentsOfRuns, AreEqualOnEveryMesh) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const RunResult expected = run(options_of(dtype));
    RunOptions wide = options_of(dtype);
    wide.rule = ops::make_rule({.weight_decay = 0.1});
    EXPECT_NE(run(wide).tensors, expected.tensors);
    for (const int gtp : {2, 3, 4})
      expect_same_bits(expected, run(options_of(dtype, 1, gtp)), fmt::format("gtp {}", gtp));
    RunOptions least = options_of(dtype, 1, 3);
    least.least_memory = true;
    least.replay = {.poison = true, .delay_seed = 5U, .longest_delay = 0.0003};
    expect_same_bits(expected, run(least), "the least memory");
    const RunResult replicas = run(options_of(dtype, 1, 1, 2));
    for (const bool zero : {true, false}) {
      RunOptions options = options_of(dtype, 1, 2, 2);
      options.zero = zero;
      expect_same_bits(replicas, run(options), fmt::format("ZeRO-1 {}", zero));
    }
    const RunResult parts = run(options_of(dtype, 2));
    expect_same_bits(parts, run(options_of(dtype, 2, 3)), "tp 2, gtp 3");
  }
}

TEST(Bf16MomentsOfRuns, AreEqualForExpertsAndNumberFormats) {
  for (const Format wire : {Format::bf16, Format::fp8}) {
    const auto options = [&](int gtp, int ep, int egtp, int dp) {
      RunOptions result = options_of(DType::bf16, 1, gtp, dp);
      result.model = testing::sparse_model();
      result.experts = nn::ExpertDegrees{.etp = 1, .ep = ep, .egtp = egtp};
      result.wire = wire;
      result.steps = 3;
      return result;
    };
    expect_same_bits(run(options(2, 2, 1, 1)), run(options(4, 2, 2, 1)), "ep 2, egtp 2");
    expect_same_bits(run(options(2, 1, 1, 2)), run(options(2, 1, 2, 2)), "egtp 2, dp 2");
  }
}

// A suppressed update does not take the random bits of the next one.
TEST(Bf16MomentsOfRuns, RepeatedStepsHaveTheSameBits) {
  RunOptions options = options_of(DType::bf16, 1, 2);
  const RunResult expected = run(options);
  options.suppressed = {{1, 2}, {3, 1}};
  const RunResult repeated = run(options);
  EXPECT_EQ(expected.losses, repeated.losses);
  EXPECT_EQ(expected.tensors, repeated.tensors);
}

// A run continues with its own bits on another mesh. Moments of the other type are converted.
TEST(Bf16MomentsOfRuns, ContinueFromACheckpoint) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tessera_bf16_moments";
  const auto rule = [](bool is_short) { return ops::make_rule({.weight_decay = 0.1, .has_bf16_moments = is_short}); };
  const auto load = [&](Trainer& trainer, int step) {
    if (step == 3) load_trainer(trainer, checkpoint::CheckpointReader(folder));
  };
  for (const bool stored_short : {true, false}) {
    std::filesystem::remove_all(folder);
    RunOptions writer = options_of(DType::bf16, 1, 2);
    writer.rule = rule(stored_short);
    const RunResult whole = run(writer);
    RunOptions part = writer;
    part.steps = 3;
    part.at_end = [&](Trainer& trainer) { save_trainer(trainer, folder, 3, nlohmann::json::object()); };
    const RunResult stored = run(part);
    RunOptions same = options_of(DType::bf16, 1, 3);
    same.rule = rule(stored_short);
    same.left_out = {0, 1, 2};
    same.before_step = load;
    EXPECT_EQ(run(same).tensors, whole.tensors) << stored_short;

    RunOptions other = same;
    other.rule = rule(!stored_short);
    other.steps = 4;
    other.before_step = [&](Trainer& trainer, int step) {
      load(trainer, step);
      for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id) {
        const shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
        const std::vector<double>& exact = stored.tensors.at("exp_avg/" + parameter.spec.name);
        const std::int64_t cols = layout::matrix_shape(parameter.spec.dims).cols;
        trainer.optimizer().for_each_plane(id, [&](const ops::StatePlane& plane, base::Buffer& buffer) {
          if (plane.name != "exp_avg") return;
          for (const layout::Piece& piece : parameter.local_state.pieces)
            for (std::int64_t i = 0; i < piece.box.elements(); ++i) {
              const std::int64_t row = i / piece.box.cols, col = i % piece.box.cols;
              const auto at = static_cast<std::size_t>(piece.offset + row * piece.stride + col);
              const auto value = static_cast<float>(
                  exact[static_cast<std::size_t>((piece.box.row + row) * cols + piece.box.col + col)]);
              const float got =
                  stored_short ? buffer.as<float>()[at] : static_cast<float>(buffer.as<quant::bfloat16>()[at]);
              ASSERT_EQ(got, stored_short ? value : static_cast<float>(quant::bfloat16(value))) << parameter.spec.name;
            }
        });
      }
    };
    run(other);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera::train::bf16_moments
