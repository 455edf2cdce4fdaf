// Whole runs of a model with the routing of dots1 on several meshes: the update of router biases, and the capacity of
// experts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

#include "tessera/base/device.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tests/base/files.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

constexpr double kRate = 0.0625;  // a power of two, so that sums of a few updates are exact
const std::string kBias = "weight/layers.1.router.bias";

struct BalancedMesh {
  int tp, gtp, dp, etp, ep, egtp;
  bool zero = false;
};

RunOptions balanced_run(const BalancedMesh& mesh) {
  return {.model = balanced_model(),
          .tp = mesh.tp,
          .gtp = mesh.gtp,
          .dp = mesh.dp,
          .experts = nn::ExpertDegrees{.etp = mesh.etp, .ep = mesh.ep, .egtp = mesh.egtp},
          .zero = mesh.zero,
          .sequence_parallel = mesh.tp > 1,
          .blocks = 8,
          .expert_bias_rate = kRate};
}

// The counts and dropped choices of each step.
struct Routed {
  RunResult result;
  std::vector<std::vector<std::int64_t>> counts;
  std::vector<std::int64_t> dropped;
};

Routed run_routed(RunOptions options) {
  Routed routed;
  options.on_result = [&](const StepResult& done) {
    routed.counts.push_back(done.router->counts);
    routed.dropped.push_back(done.router->dropped);
  };
  routed.result = run(options);
  return routed;
}

// Returns the biases after these steps, from their definition.
std::vector<double> expected_bias(const std::vector<std::vector<std::int64_t>>& counts) {
  std::vector<double> bias(counts.front().size(), 0);
  for (const std::vector<std::int64_t>& of_step : counts) {
    std::int64_t all = 0;
    for (const std::int64_t count : of_step) all += count;
    const auto experts = static_cast<std::int64_t>(of_step.size());
    for (std::size_t e = 0; e < bias.size(); ++e) {
      const std::int64_t missing = all - experts * of_step[e];
      bias[e] += kRate * static_cast<double>((missing > 0) - (missing < 0));
    }
  }
  return bias;
}

TEST(RouterBiasUpdate, FollowsTheCountsOfTheStep) {
  const Routed found = run_routed(balanced_run({1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(found.result.tensors.at(kBias), expected_bias(found.counts));
  const std::vector<double>& bias = found.result.tensors.at(kBias);
  EXPECT_GT(std::set<double>(bias.begin(), bias.end()).size(), 1U);
  for (const std::vector<std::int64_t>& of_step : found.counts) {
    std::int64_t all = 0;
    for (const std::int64_t count : of_step) all += count;
    EXPECT_EQ(all, 8 * 8 * 3);
  }
  RunOptions fixed = balanced_run({1, 1, 1, 1, 1, 1});
  fixed.expert_bias_rate = 0;
  EXPECT_EQ(run(fixed).tensors.at(kBias), std::vector<double>(9, 0));
}

TEST(RouterBiasUpdate, HasTheSameBitsForEveryGtpEgtpAndZero) {
  const auto check = [](const std::vector<std::pair<BalancedMesh, nn::Recompute>>& runs) {
    std::optional<Routed> expected;
    for (const auto& [mesh, recompute] : runs) {
      RunOptions options = balanced_run(mesh);
      options.recompute = recompute;
      options.expert_capacity = 1;
      const Routed found = run_routed(options);
      if (!expected) expected = found;
      const std::string what =
          fmt::format("tp {} gtp {} dp {} ep {} egtp {}", mesh.tp, mesh.gtp, mesh.dp, mesh.ep, mesh.egtp);
      expect_same_bits(expected->result, found.result, what);
      EXPECT_EQ(expected->counts, found.counts) << what;
      EXPECT_EQ(expected->dropped, found.dropped) << what;
    }
    EXPECT_GT(expected->dropped.front(), 0);
  };
  using enum nn::Recompute;
  check({{{1, 1, 1, 1, 1, 1}, none}, {{1, 4, 1, 1, 1, 4}, full}, {{1, 2, 1, 1, 1, 1}, selective}});
  check({{{1, 2, 2, 1, 2, 1}, none}, {{1, 4, 2, 1, 2, 2, true}, full}});
  check({{{2, 1, 1, 2, 1, 1}, none}, {{2, 2, 1, 2, 1, 2}, selective}});
}

// Other tp, etp and ep change results by rounding. Choices, dropped choices and biases do not change.
TEST(RouterBiasUpdate, IsExactOnEveryMeshInFp64) {
  std::optional<Routed> expected;
  for (const BalancedMesh& mesh : std::initializer_list<BalancedMesh>{{1, 1, 1, 1, 1, 1},
                                                                      {1, 4, 1, 1, 4, 1},
                                                                      {1, 2, 2, 1, 1, 2, true},
                                                                      {2, 2, 1, 2, 2, 1},
                                                                      {2, 1, 1, 1, 2, 1},
                                                                      {3, 1, 1, 3, 1, 1}}) {
    SCOPED_TRACE(fmt::format("tp {} gtp {} dp {} etp {} ep {}", mesh.tp, mesh.gtp, mesh.dp, mesh.etp, mesh.ep));
    RunOptions options = balanced_run(mesh);
    options.dtype = quant::DType::fp64;
    options.expert_capacity = 1.25;
    const Routed found = run_routed(options);
    if (!expected) expected = found;
    EXPECT_EQ(expected->counts, found.counts);
    EXPECT_EQ(expected->dropped, found.dropped);
    EXPECT_EQ(expected->result.tensors.at(kBias), found.result.tensors.at(kBias));
    expect_within_fp64_bounds(expected->result, found.result, "");
  }
  EXPECT_GT(expected->dropped.front(), 0);
}

TEST(RouterBiasUpdate, LeavesTheBiasInAStepThatIsSkippedOrSuppressed) {
  for (const BalancedMesh& mesh : std::initializer_list<BalancedMesh>{{1, 1, 1, 1, 1, 1}, {1, 2, 1, 1, 2, 1}}) {
    RunOptions options = balanced_run(mesh);
    options.spoiled = {1};
    const Routed found = run_routed(options);
    EXPECT_EQ(found.result.skipped, (std::vector<bool>{false, true, false}));
    EXPECT_EQ(found.result.tensors.at(kBias), expected_bias({found.counts[0], found.counts[2]}));
    EXPECT_NE(found.result.tensors.at(kBias), expected_bias(found.counts));

    options.spoiled = {};
    const RunResult plain = run(options);
    options.suppressed = {{1, 2}};
    const RunResult repeated = run(options);
    EXPECT_EQ(repeated.suppressed.size(), 2U);
    EXPECT_EQ(plain.tensors, repeated.tensors);
  }
}

// On a GPU, the host enqueues the update before it knows the counts and whether the step is skipped.
TEST(RouterBiasUpdate, FollowsTheCountsOnAGpu) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  RunOptions options = balanced_run({1, 1, 1, 1, 1, 1});
  options.on_gpu = true;
  options.steps = 8;
  options.spoiled = {5};
  options.expert_capacity = 1;
  Routed found = run_routed(options);
  EXPECT_GT(found.dropped.front(), 0);
  EXPECT_TRUE(found.result.skipped.at(5));
  found.counts.erase(found.counts.begin() + 5);
  EXPECT_EQ(found.result.tensors.at(kBias), expected_bias(found.counts));

  options.graph = true;
  options.ahead = Trainer::kMaxPending - 1;
  for (const std::map<int, int>& suppressed : {std::map<int, int>(), {{4, 1}}, {{6, 2}}}) {
    options.suppressed = suppressed;
    RunResult repeated = run(options);
    EXPECT_GE(repeated.graph_steps, options.steps - 3);
    repeated.suppressed.clear();
    expect_same_bits(found.result, repeated, "graph");
  }
}

// The update is one message, before weights are published, and steps with it follow their schedule.
TEST(RouterBiasUpdate, IsOneMessageOfTheOptimizer) {
  RunOptions options = balanced_run({1, 2, 1, 1, 2, 1});
  options.after_step = [](Trainer& trainer, int step) {
    int messages = 0, published = 0;
    for (const schedule::Event& event : trainer.runtime().trace()) {
      if (event.op == schedule::kCountsOp) {
        ++messages;
        EXPECT_EQ(published, 0);
        EXPECT_EQ(event.microbatch, -1);
        EXPECT_EQ(event.bytes, 9 * 8);
      }
      published += event.kind == schedule::EventKind::publish ? 1 : 0;
    }
    EXPECT_EQ(messages, 1) << "step " << step;
    if (step > 0) {
      EXPECT_FALSE(trainer.runtime().statistics().recorded) << "step " << step;
    }
  };
  run(options);
}

TEST(RouterBiasUpdate, ContinuesFromACheckpointOnAnotherMesh) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  RunOptions writer = balanced_run({1, 2, 1, 1, 1, 2});
  writer.after_step = [&](Trainer& trainer, int step) {
    if (step == 1) save_trainer(trainer, folder, 2, nlohmann::json::object());
  };
  const RunResult whole = run(writer);
  RunOptions reader = balanced_run({1, 4, 1, 1, 1, 1});
  reader.left_out = {0, 1};
  reader.before_step = [&](Trainer& trainer, int step) {
    if (step == 2) load_trainer(trainer, checkpoint::CheckpointReader(folder));
  };
  EXPECT_EQ(run(reader).tensors, whole.tensors);
}

}  // namespace
}  // namespace tessera::train::testing
