// Whole runs of a model with experts on several meshes: the order of sums in nodes, and checkpoints between meshes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/train/trainer_checkpoint.h"
#include "tests/base/files.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

struct ExpertMesh {
  int tp, gtp, dp, etp, ep, egtp;
  bool zero = false;
};

std::string text_of(const ExpertMesh& mesh) {
  return fmt::format("tp {} gtp {} dp {} etp {} ep {} egtp {}{}", mesh.tp, mesh.gtp, mesh.dp, mesh.etp, mesh.ep,
                     mesh.egtp, mesh.zero ? " zero" : "");
}

RunOptions options_of(const ExpertMesh& mesh) {
  return {.model = sparse_model(),
          .tp = mesh.tp,
          .gtp = mesh.gtp,
          .dp = mesh.dp,
          .experts = nn::ExpertDegrees{.etp = mesh.etp, .ep = mesh.ep, .egtp = mesh.egtp},
          .zero = mesh.zero,
          .sequence_parallel = mesh.tp > 1,
          .blocks = 16};
}

RunResult run_in_nodes(const ExpertMesh& mesh, std::vector<int> nodes) {
  RunOptions options = options_of(mesh);
  options.nodes = std::move(nodes);
  return run(options);
}

// Four ranks add gradients of dense weights, and as many add gradients of experts, in two nodes of two.
TEST(ExpertsInNodes, HaveTheSameBitsForEveryEgtpAndZero) {
  for (const int ep : {1, 2}) {
    const std::vector<int> nodes{2, ep == 1 ? 2 : 1};
    const RunResult expected = run_in_nodes({1, 4, 1, 1, ep, 1}, nodes);
    for (const int egtp : {2, 4})
      if (ep * egtp <= 4) {
        expect_same_bits(expected, run_in_nodes({1, 4, 1, 1, ep, egtp}, nodes), fmt::format("ep {} egtp {}", ep, egtp));
      }
  }
  const RunResult replicas = run_in_nodes({1, 4, 2, 1, 1, 1}, {2, 2});
  expect_same_bits(replicas, run_in_nodes({1, 4, 2, 1, 1, 4, true}, {2, 2}), "ZeRO-1");
}

// The gradients of the first step differ only in the order of sums.
TEST(ExpertsInNodes, AddGradientsOfExpertsInNodesOfTheirOwn) {
  const auto gradients = [](std::vector<int> nodes) {
    RunOptions options = options_of({1, 4, 1, 1, 1, 2});
    options.nodes = std::move(nodes);
    options.steps = 1;
    return run(options).tensors;
  };
  const auto sequential = gradients({}), dense = gradients({2, 1}), experts = gradients({1, 2});
  const std::string expert = "main_grad/layers.0.experts.gate_up.weight",
                    qkv = "main_grad/layers.0.attention.qkv.weight";
  EXPECT_EQ(dense.at(expert), sequential.at(expert));
  EXPECT_NE(dense.at(qkv), sequential.at(qkv));
  EXPECT_NE(experts.at(expert), sequential.at(expert));
  EXPECT_EQ(experts.at(qkv), sequential.at(qkv));
  EXPECT_EQ(gradients({1, 1}), sequential);
}

// The degrees of dense weights and of experts differ. No gradient is scaled by a degree. tests/e2e compares a run of
// one rank with other programs.
TEST(ExpertGradients, EqualThoseOfOneRankInFp64) {
  const auto gradients = [](const ExpertMesh& mesh) {
    RunOptions options = options_of(mesh);
    options.dtype = quant::DType::fp64;
    options.steps = 1;
    return run(options).tensors;
  };
  const auto expected = gradients({1, 1, 1, 1, 1, 1});
  for (const ExpertMesh& mesh : std::initializer_list<ExpertMesh>{{1, 4, 1, 1, 1, 1},
                                                                  {1, 4, 1, 1, 1, 4},
                                                                  {1, 4, 1, 1, 2, 2},
                                                                  {1, 4, 1, 1, 2, 1},
                                                                  {1, 4, 1, 1, 4, 1},
                                                                  {1, 2, 2, 1, 2, 1, true},
                                                                  {1, 2, 2, 1, 1, 2},
                                                                  {2, 2, 1, 2, 1, 1},
                                                                  {2, 2, 1, 1, 2, 2},
                                                                  {2, 2, 1, 2, 2, 1}}) {
    SCOPED_TRACE(text_of(mesh));
    const auto found = gradients(mesh);
    int compared = 0;
    for (const auto& [name, values] : expected) {
      if (!name.starts_with("main_grad/")) continue;
      const std::vector<double>& others = found.at(name);
      ASSERT_EQ(values.size(), others.size()) << name;
      const double largest =
          std::abs(*std::ranges::max_element(values, {}, [](double value) { return std::abs(value); }));
      EXPECT_GT(largest, 0) << name;
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], others[i], 1e-12 * largest) << name;
      ++compared;
    }
    EXPECT_EQ(compared, 17);
  }
}

// A router or a token that is not finite skips the step on every rank. No weight and no moment changes.
TEST(ExpertsNotFinite, SkipTheStep) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  bool is_first_mesh = false;
  for (const ExpertMesh& mesh : std::initializer_list<ExpertMesh>{{1, 4, 1, 1, 2, 2}, {2, 2, 1, 2, 1, 1}}) {
    is_first_mesh = !is_first_mesh;
    RunOptions options = options_of(mesh);
    options.steps = 1;
    const RunResult before = run(options);
    options.steps = 2;
    for (const std::string changed : {"layers.0.router.weight", "layers.1.router.weight", "embedding.weight"})
      for (const float value : {kNaN, kInf, -kInf, 3e38f}) {
        if (changed == "embedding.weight" && value == 3e38f) continue;  // RMSNorm of a large finite row is zero
        // Each router has two of the values on one mesh, and the other two on the other mesh.
        const bool is_infinite = std::isinf(value);
        if (changed == "layers.0.router.weight" && is_infinite != is_first_mesh) continue;
        if (changed == "layers.1.router.weight" && is_infinite == is_first_mesh) continue;
        SCOPED_TRACE(fmt::format("{} {} {}", text_of(mesh), changed, value));
        // Names one row: a row of an expert's matrix, or the row of a token in the embedding.
        const std::int64_t changed_row =
            changed == "embedding.weight" ? sample(options, 16).tokens[0].item<std::int64_t>() : 3;
        options.before_step = [&](Trainer& trainer, int step) {
          if (step != 1) return;
          set_elements(trainer, changed,
                       [&](std::int64_t row, std::int64_t, float old) { return row == changed_row ? value : old; });
        };
        const RunResult found = run(options);
        EXPECT_EQ(found.skipped, (std::vector<bool>{false, true}));
        EXPECT_EQ(found.updates, before.updates);
        for (const auto& [name, values] : before.tensors)
          if (!name.starts_with("main_grad/") && name != "weight/" + changed)
            EXPECT_EQ(values, found.tensors.at(name)) << name;
      }
  }
}

// Every target is masked: no term of a router counts, and the gradient is zero.
TEST(ExpertsWithoutTargets, HaveNoGradient) {
  RunOptions options = options_of({1, 4, 1, 1, 2, 2});
  options.masked = true;
  options.steps = 1;
  const RunResult found = run(options);
  EXPECT_EQ(found.norms, std::vector<double>{0});
  EXPECT_EQ(found.skipped, std::vector<bool>{false});
}

constexpr ExpertMesh kMeshes[] = {{1, 1, 1, 1, 1, 1}, {1, 4, 1, 1, 2, 2},       {1, 4, 1, 1, 4, 1},
                                  {2, 2, 1, 2, 1, 2}, {2, 2, 1, 1, 2, 2, true}, {1, 2, 2, 1, 1, 2, true},
                                  {1, 2, 4, 1, 2, 1}, {2, 4, 1, 2, 2, 1},       {1, 8, 1, 1, 4, 2}};

// Compares weights and moments. main_grad is not stored.
void expect_same_state(const RunResult& written, const RunResult& loaded) {
  int compared = 0;
  for (const auto& [name, values] : written.tensors) {
    if (name.starts_with("main_grad/")) continue;
    EXPECT_EQ(values, loaded.tensors.at(name)) << name;
    ++compared;
  }
  EXPECT_GT(compared, 3 * 10);
}

class ExpertCheckpoints : public ::testing::TestWithParam<ExpertMesh> {};

TEST_P(ExpertCheckpoints, LoadOnEveryMesh) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  RunOptions writer = options_of(GetParam());
  writer.dtype = GetParam().gtp == 4 ? quant::DType::bf16 : quant::DType::fp32;
  writer.at_end = [&](Trainer& trainer) { save_trainer(trainer, folder, 3, nlohmann::json::object()); };
  const RunResult written = run(writer);
  for (const ExpertMesh& mesh : kMeshes) {
    SCOPED_TRACE(text_of(mesh));
    RunOptions reader = options_of(mesh);
    reader.dtype = writer.dtype;
    reader.steps = 0;
    reader.at_end = [&](Trainer& trainer) { load_trainer(trainer, checkpoint::CheckpointReader(folder)); };
    const RunResult loaded = run(reader);
    expect_same_state(written, loaded);
    EXPECT_EQ(written.updates, loaded.updates);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, ExpertCheckpoints, ::testing::ValuesIn(kMeshes), [](const auto& info) {
  std::string name = text_of(info.param);
  std::erase(name, ' ');
  return name;
});

TEST(ExpertCheckpoints, ContinueWithTheBitsOfTheWholeRun) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  RunOptions writer = options_of({1, 4, 2, 1, 2, 2, true});
  writer.after_step = [&](Trainer& trainer, int step) {
    if (step == 1) save_trainer(trainer, folder, 2, nlohmann::json::object());
  };
  const RunResult whole = run(writer);
  for (const ExpertMesh& mesh : {ExpertMesh{1, 2, 2, 1, 2, 1, true}, {1, 4, 2, 1, 2, 1}}) {
    RunOptions reader = options_of(mesh);
    reader.left_out = {0, 1};
    reader.before_step = [&](Trainer& trainer, int step) {
      if (step == 2) load_trainer(trainer, checkpoint::CheckpointReader(folder));
    };
    const RunResult rest = run(reader);
    EXPECT_EQ(rest.losses.back(), whole.losses.back());
    EXPECT_EQ(rest.norms.back(), whole.norms.back());
    EXPECT_EQ(rest.tensors, whole.tensors) << text_of(mesh);
  }
}

}  // namespace
}  // namespace tessera::train::testing
