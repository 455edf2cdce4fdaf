// Tests two microbatches that are open at once: their dropout masks, their gradients and their events.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/remainder.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "tessera/models/decoder/decoder.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/runtime/record/dry_run.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kOpenLength = 6;
const nn::DropoutOptions kOpenDropout{.hidden = 0.3, .embedding = 0.2};

DecoderConfig open_model() {
  DecoderConfig config;
  config.vocab_size = 19;
  config.hidden_size = 10;
  config.intermediate_size = 8;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.experts = ExpertsConfig{.count = 5, .per_token = 2, .width = 4, .sparse = {true, false}};
  return config;
}

// The batches of two microbatches with different tokens.
std::array<Batch, 2> open_batches() {
  std::array<Batch, 2> batches;
  for (int number = 0; number < 2; ++number) {
    Batch& batch = batches.at(static_cast<std::size_t>(number));
    const at::Tensor places = at::arange(kOpenLength, at::kLong);
    batch.tokens = at::remainder(places * 7 + number, 19);
    batch.targets = at::remainder(places * 11 + number, 19);
    batch.layout = {.batch = 1, .seq_len = kOpenLength, .positions = places, .cu_seqlens = {}};
    batch.first_token = number * kOpenLength;
  }
  return batches;
}

using Gradients = std::map<std::pair<int, schedule::ParameterId>, std::vector<double>>;  // by microbatch and parameter

// A program of one rank that has memory. Unlike a running program, it may have several open microbatches.
class OpenProgram final : public runtime::DryRun {
 public:
  OpenProgram()
      : DryRun(nn::rank_layout({.experts = nn::ExpertDegrees{}}), 0,
               {.model = quant::DType::fp64, .accumulator = quant::DType::fp64, .wire = quant::DType::fp64}, {}) {}

  base::Device device() const override { return {}; }
  runtime::WeightView consume(schedule::ParameterId weight, schedule::PassId pass) override {
    runtime::WeightView view = DryRun::consume(weight, pass);
    EXPECT_EQ(view.planes[0].type, quant::DType::fp64);
    std::vector<double>& values = weights_[weight];
    if (values.empty())
      for (std::int64_t i = 0; i < parameters().local_compute(weight).size; ++i)
        values.push_back(0.4 * std::sin(static_cast<double>(i) * 1.7 + weight));
    view.planes[0].data = values.data();
    return view;
  }
  runtime::GradientBuffer grad_buffer(schedule::ParameterId weight, int microbatch) override {
    runtime::GradientBuffer buffer = DryRun::grad_buffer(weight, microbatch);
    EXPECT_EQ(buffer.dtype, quant::DType::fp64);
    std::vector<double>& values = gradients[{microbatch, weight}];
    values.resize(static_cast<std::size_t>(parameters().local_compute(weight).size));
    buffer.data = values.data();
    return buffer;
  }

  Gradients gradients;

 private:
  std::map<schedule::ParameterId, std::vector<double>> weights_;
};

// Runs forward and backward of two microbatches. interleaved: both are open when the first backward begins.
void run_open_step(runtime::DryRun& program, const nn::Context& context, const std::array<Batch, 2>& batches,
                   bool interleaved) {
  Decoder model(open_model(), context, {.max_positions = kOpenLength});
  const std::int64_t step = 3;
  std::array<at::Tensor, 2> objectives;
  const auto forward = [&](int microbatch) {
    const auto index = static_cast<std::size_t>(microbatch);
    program.begin_microbatch(microbatch);
    const nn::PassState pass{.context = context, .id = {microbatch}, .random = {.seed = 5, .step = &step}};
    objectives.at(index) = model.forward(batches.at(index), pass, 0.1).objective;
  };
  const auto backward = [&](int microbatch) {
    std::exchange(objectives.at(static_cast<std::size_t>(microbatch)), {}).backward();
    program.end_microbatch(microbatch);
  };
  program.begin_step(schedule::StepKind::train, 2);
  forward(0);
  if (interleaved) forward(1);
  backward(0);
  if (!interleaved) forward(1);
  backward(1);
  program.end_step();
}

Gradients gradients_of(nn::Recompute recompute, const std::array<Batch, 2>& batches, bool interleaved) {
  OpenProgram program;
  const nn::Context context{.program = program, .recompute = recompute, .dropout = kOpenDropout};
  run_open_step(program, context, batches, interleaved);
  return program.gradients;
}

class OpenMicrobatches : public ::testing::TestWithParam<nn::Recompute> {};

TEST_P(OpenMicrobatches, HaveTheMasksAndGradientsOfMicrobatchesInTurn) {
  const std::array<Batch, 2> batches = open_batches();
  const Gradients in_turn = gradients_of(GetParam(), batches, false);
  EXPECT_EQ(in_turn.size(), 2U * 16);
  EXPECT_EQ(gradients_of(GetParam(), batches, true), in_turn);
  // The test would find the masks of another microbatch.
  std::array<Batch, 2> other = batches;
  other[1].first_token = other[0].first_token;
  EXPECT_NE(gradients_of(GetParam(), other, false), in_turn);
}

TEST_P(OpenMicrobatches, HaveTheEventsOfMicrobatchesInTurn) {
  std::array<Batch, 2> batches = open_batches();
  for (Batch& batch : batches)
    for (at::Tensor* tensor : {&batch.tokens, &batch.targets, &batch.layout.positions}) *tensor = tensor->to(at::kMeta);
  for (const bool overlap : {false, true}) {
    std::array<schedule::Trace, 2> traces;
    for (const bool interleaved : {false, true}) {
      runtime::DryRun program(nn::rank_layout({.tp = 2, .experts = nn::ExpertDegrees{.etp = 2}}), 1, {}, {});
      nn::Context context{
          .program = program, .sequence_parallel = true, .recompute = GetParam(), .dropout = kOpenDropout};
      context.products.tp_overlap = overlap;
      run_open_step(program, context, batches, interleaved);
      traces.at(interleaved ? 1 : 0) = program.trace();
    }
    EXPECT_NE(traces[1], traces[0]);
    std::ranges::stable_sort(traces[1], {}, &schedule::Event::microbatch);
    EXPECT_EQ(traces[1], traces[0]) << overlap;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, OpenMicrobatches,
                         ::testing::Values(nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full),
                         [](const auto& info) { return std::string(nn::name_of(info.param)); });

}  // namespace
}  // namespace tessera::models
