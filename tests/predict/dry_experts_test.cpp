// Compares dry steps of models with experts with the steps that a runtime records.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/models/divided_model.h"
#include "tests/predict/recorded_steps.h"

namespace tessera::predict {
namespace {

// The first layer has 7 experts, the second is dense.
models::DecoderConfig sparse_model() {
  models::DecoderConfig config = odd_model(false);
  config.experts =
      models::ExpertsConfig{.count = 7, .per_token = 2, .width = 16, .aux_coefficient = 0.01, .sparse = {true, false}};
  return config;
}

// Returns every mesh of 1 to 8 ranks, and of 2 replicas of 4, that a model with experts accepts.
std::vector<nn::MeshDegrees> meshes_with_experts() {
  std::vector<nn::MeshDegrees> meshes;
  for (const int dp : {1, 2})
    for (int tp = 1; tp <= 2; ++tp)
      for (int gtp = 1; tp * gtp * dp <= 8; ++gtp)
        for (int etp = 1; etp <= tp; ++etp)
          for (int ep = 1; ep <= 7; ++ep)
            for (int egtp = 1; egtp <= gtp * tp; ++egtp) {
              const nn::MeshDegrees mesh{
                  .tp = tp, .gtp = gtp, .dp = dp, .experts = nn::ExpertDegrees{.etp = etp, .ep = ep, .egtp = egtp}};
              if (tp * gtp % (etp * ep * egtp) != 0 || etp * ep % tp != 0) continue;
              meshes.push_back(mesh);
            }
  return meshes;
}

TEST(DryStepExperts, EqualTheRecordedStepsOnEveryMesh) {
  int number = 0;
  for (const nn::MeshDegrees& mesh : meshes_with_experts()) {
    const auto [etp, ep, egtp] = *mesh.experts;
    SCOPED_TRACE(fmt::format("tp {} gtp {} dp {} etp {} ep {} egtp {}", mesh.tp, mesh.gtp, mesh.dp, etp, ep, egtp));
    const std::array policies{nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full};
    Case it{.config = sparse_model(),
            .tp = mesh.tp,
            .gtp = mesh.gtp,
            .dp = mesh.dp,
            .microbatches = 1 + number % 2,
            .dtype = number % 4 < 2 ? quant::DType::fp32 : quant::DType::bf16,
            .recompute = policies.at(static_cast<std::size_t>(number) % 3),
            .sequence_parallel = mesh.tp > 1,
            .experts = mesh.experts};
    if (++number % 5 == 0) it.kind = schedule::StepKind::evaluate;
    compare(it);
  }
  EXPECT_GT(number, 50);
}

// The second layer has the routing of dots1: a bias, groups, and a shared expert.
models::DecoderConfig balanced_model() {
  models::DecoderConfig config = odd_model(false);
  config.has_head_norms = true;
  config.experts = models::ExpertsConfig{.count = 6,
                                         .per_token = 2,
                                         .width = 5,
                                         .sparse = {false, true},
                                         .score = ops::RouterScore::sigmoid,
                                         .groups = 3,
                                         .chosen_groups = 2,
                                         .has_router_bias = true,
                                         .shared_width = 10};
  return config;
}

TEST(DryStepExperts, EqualTheRecordedStepsOfDots1) {
  using enum nn::Recompute;
  for (const auto& [mesh, policy] : std::initializer_list<std::pair<nn::MeshDegrees, nn::Recompute>>{
           {{.tp = 1, .gtp = 2, .dp = 1, .experts = nn::ExpertDegrees{.etp = 1, .ep = 2, .egtp = 1}}, none},
           {{.tp = 2, .gtp = 2, .dp = 1, .experts = nn::ExpertDegrees{.etp = 2, .ep = 1, .egtp = 2}}, selective},
           {{.tp = 2, .gtp = 1, .dp = 2, .experts = nn::ExpertDegrees{.etp = 1, .ep = 2, .egtp = 1}}, full}})
    compare({.config = balanced_model(),
             .tp = mesh.tp,
             .gtp = mesh.gtp,
             .dp = mesh.dp,
             .recompute = policy,
             .sequence_parallel = mesh.tp > 1,
             .experts = mesh.experts});
}

TEST(DryStepExperts, UpdateRouterBiasesBeforeWeights) {
  const Case it{.config = balanced_model(), .gtp = 2, .experts = nn::ExpertDegrees{.ep = 2}};
  DryOptions options = options_of(it, 0);
  const schedule::Trace without = dry_step(options).optimizer;
  options.step.expert_bias_rate = 0.1;
  const schedule::Trace with = dry_step(options).optimizer;
  ASSERT_EQ(with.size(), without.size() + 2);
  EXPECT_EQ(with[0].op, schedule::kCountsOp);
  EXPECT_EQ(with[0].bytes, 6 * 8);
  EXPECT_EQ(with[1].kind, schedule::EventKind::publish);
  EXPECT_EQ(dry_step(options).parameters[static_cast<std::size_t>(with[1].parameter)].name, "layers.1.router.bias");
}

TEST(DryStepExperts, RangesOfBlocksHaveTheEventsOfAllBlocks) {
  for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
    const Case it{.config = balanced_model(),
                  .tp = 2,
                  .recompute = recompute,
                  .sequence_parallel = true,
                  .experts = nn::ExpertDegrees{.etp = 2}};
    DryOptions options = options_of(it, 1);
    options.step.dropout.hidden = 0.25;
    const DryStep whole = dry_step(options);
    for (const std::vector<std::int64_t>& ends : {std::vector<std::int64_t>{1}, {0, 1}}) {
      DryOptions divided = options;
      divided.step.build = [&](const nn::Context& context) {
        return std::make_unique<models::testing::DividedModel>(options.step.build(context), ends);
      };
      const DryStep parts = dry_step(divided);
      EXPECT_EQ(parts.microbatch, whole.microbatch);
      EXPECT_EQ(parts.optimizer, whole.optimizer);
    }
  }
}

// Returns the bytes of activations of all tokens that a dry step keeps, by layer with experts.
std::vector<std::int64_t> kept_of_all_tokens(const DryOptions& options) {
  std::vector<std::int64_t> bytes;
  for (const schedule::Event& event : dry_step(options).microbatch)
    if (event.kind == schedule::EventKind::stash && event.op == "keep") bytes.push_back(event.bytes);
  return bytes;
}

// Two owners of 3 experts each, and 2 x 14 tokens with 2 choices. The even load of an owner is 28 rows, and 56 rows are
// possible. For each row, a layer keeps 2 x 5 elements of gate and up, and 5 elements after SwiGLU. For each token, it
// keeps 2 choices and 2 weights.
TEST(DryStepExperts, KeepAsManyRowsAsTheRoomHas) {
  const Case it{.config = balanced_model(), .gtp = 2, .experts = nn::ExpertDegrees{.ep = 2}};
  DryOptions options = options_of(it, 0);
  const auto bytes = [](std::int64_t rows) { return (rows * 3 * 5 + 28 * 4) * 4; };
  using testing::Contains;
  EXPECT_THAT(kept_of_all_tokens(options), Contains(bytes(56)));
  options.step.expert_room = 1.5;
  EXPECT_THAT(kept_of_all_tokens(options), Contains(bytes(42)));
  options.step.expert_room = 3;
  EXPECT_THAT(kept_of_all_tokens(options), Contains(bytes(56)));
}

// The recorded step reduces each gradient of experts after its product: more layers stage no more bytes of them.
TEST(DryStepExperts, StagedBytesDoNotGrowWithTheLayers) {
  std::vector<std::int64_t> peaks;
  for (const int layers : {1, 8}) {
    Case it{.config = sparse_model(), .gtp = 2, .experts = nn::ExpertDegrees{.egtp = 2}};
    it.config.num_layers = layers;
    it.config.experts->sparse = std::vector<bool>(static_cast<std::size_t>(layers), true);
    comm::run_local(2, {}, [&](comm::World& world) {
      const std::int64_t peak = recorded(world, it).staged_peak;
      if (world.rank() == 0) peaks.push_back(peak);
    });
  }
  // gate_up: 7 experts of 32 x 11 fp32 values, in a buffer of a multiple of 256 bytes; norms of 11 values, 3 and 17
  // of them. When the first layer's gate_up is staged, one norm of that layer is not produced yet, and one is not
  // staged.
  constexpr std::int64_t kGateUp = 9984, kNorm = 256;
  EXPECT_EQ(peaks, (std::vector<std::int64_t>{kGateUp + kNorm, kGateUp + 15 * kNorm}));
}

bool computes(const std::vector<ops::Work>& segment, ops::ProductCall call) {
  return std::ranges::any_of(segment, [call](const ops::Work& work) {
    return work.kind == ops::WorkKind::product && work.product.call == call;
  });
}

// Backward releases each weight of experts after dgrad and before wgrad, so its memory is free during wgrad. A segment
// of work belongs to the event that follows it.
TEST(DryStepExperts, ReleaseEachWeightBeforeItsGradientIsComputed) {
  comm::run_local(4, {}, [](comm::World& world) {
    const Case it{.config = sparse_model(),
                  .gtp = 4,
                  .recompute = nn::Recompute::selective,
                  .experts = nn::ExpertDegrees{.ep = 2, .egtp = 2}};
    const schedule::Trace trace = recorded(world, it).trace;
    const DryStep dry = dry_step(options_of(it, world.rank()));
    int gradients = 0;
    for (std::size_t produce = 0; produce < trace.size(); ++produce) {
      const schedule::ParameterId id = trace[produce].parameter;
      if (trace[produce].kind != schedule::EventKind::produce ||
          dry.parameters[static_cast<std::size_t>(id)].domain == 0)
        continue;
      ++gradients;
      std::size_t release = produce - 1;
      while (trace[release].parameter != id) --release;
      EXPECT_EQ(trace[release].kind, schedule::EventKind::release) << to_string(trace[release]);
      EXPECT_EQ(trace[release].pass, schedule::Pass::backward);
      EXPECT_TRUE(computes(dry.work[release], ops::ProductCall::dgrad));
      for (std::size_t at = release + 1; at <= produce; ++at) {
        EXPECT_EQ(computes(dry.work[at], ops::ProductCall::wgrad), at == produce);
        EXPECT_FALSE(computes(dry.work[at], ops::ProductCall::dgrad));
      }
    }
    EXPECT_EQ(gradients, 2);
  });
}

}  // namespace
}  // namespace tessera::predict
