// Tests gradients that layers write directly to main_grad (shard::writes_main_grad).
#include <gtest/gtest.h>

#include <string>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

int written_by_layers(runtime::Runtime& runtime) {
  int count = 0;
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id)
    count += runtime.parameter(id).written_by_layers ? 1 : 0;
  return count;
}

// Runs the steps with sums and without sums, and expects equal bits.
void check(RunOptions options, const std::string& what) {
  options.replay.poison = true;
  const RunResult expected = run(options);
  options.one_microbatch = true;
  options.at_end = [&](Trainer& trainer) {
    EXPECT_GE(written_by_layers(trainer.runtime()), 6) << what;
    const schedule::Schedule* const schedule = trainer.runtime().schedule(schedule::StepKind::train, 1);
    ASSERT_NE(schedule, nullptr) << what;
    for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id) {
      const shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
      if (!parameter.written_by_layers) continue;
      EXPECT_EQ(parameter.main_grad.size(),
                static_cast<std::size_t>(parameter.types.wire_bytes(parameter.shard_elements())))
          << what << ": " << parameter.spec.name;
    }
  };
  expect_same_bits(expected, run(options), what);
}

RunOptions one_block(const models::DecoderConfig& model, quant::DType dtype) {
  return {.model = model, .dtype = dtype, .blocks = 1, .steps = 4};
}

TEST(WrittenMainGrad, HasTheBitsOfSums) {
  for (const quant::DType dtype : {quant::DType::fp32, quant::DType::bf16}) {
    const std::string type(quant::name_of(dtype));
    check(one_block(testing::odd_model(), dtype), type);
    check(one_block(testing::normed_model(), dtype), type + ", norms of heads");
    RunOptions tp = one_block(testing::biased_model(), dtype);
    tp.tp = 3;
    check(tp, type + ", tp 3");
    tp.sequence_parallel = true;
    tp.recompute = nn::Recompute::full;
    check(tp, type + ", tokens over tp");
  }
}

TEST(WrittenMainGrad, HasTheBitsOfSumsWithExperts) {
  for (const models::DecoderConfig& model : {testing::sparse_model(), testing::balanced_model()}) {
    RunOptions options = one_block(model, quant::DType::bf16);
    options.experts = nn::ExpertDegrees{};
    check(options, "one rank");
    options.tp = 2;
    options.sequence_parallel = true;
    options.experts = nn::ExpertDegrees{.ep = 2};
    check(options, "ep 2");
    options.experts = nn::ExpertDegrees{.etp = 2};
    check(options, "etp 2");
  }
}

TEST(WrittenMainGrad, HasTheBitsOfSumsInNumberFormats) {
  RunOptions options = one_block(testing::odd_model(), quant::DType::bf16);
  options.model.intermediate_size = 38;  // 4-bit formats need an even number of columns
  for (const quant::Format format : {quant::Format::nvfp4, quant::Format::mxfp8, quant::Format::fp8}) {
    options.wire = format;
    check(options, "wire");
    options.wire_backward = quant::Format::bf16;
    check(options, "other format in backward passes");
    options.wire_backward.reset();
  }
  options.products = quant::Format::fp8;
  check(options, "products");
}

TEST(WrittenMainGrad, IsWrittenAgainInRepeatedSteps) {
  RunOptions options = one_block(testing::odd_model(), quant::DType::bf16);
  options.steps = 8;
  options.ahead = 1;
  options.suppressed = {{0, 1}, {3, 2}};
  options.spoiled = {5};
  options.evaluated = {2, 6};
  check(options, "suppressed and skipped steps");
}

// Ranks and replicas add their gradients, so these parameters need sums.
TEST(WrittenMainGrad, IsNotUsedWhereRanksAddGradients) {
  for (const auto& [gtp, dp] : {std::pair{2, 1}, {1, 2}}) {
    RunOptions options = one_block(testing::odd_model(), quant::DType::fp32);
    options.gtp = gtp;
    options.dp = dp;
    options.blocks = 2;
    const RunResult expected = run(options);
    options.one_microbatch = true;
    options.at_end = [](Trainer& trainer) { EXPECT_EQ(written_by_layers(trainer.runtime()), 0); };
    expect_same_bits(expected, run(options), "gtp " + std::to_string(gtp));
  }
}

TEST(WrittenMainGrad, RefusesASecondMicrobatch) {
  RunOptions options = one_block(testing::odd_model(), quant::DType::fp32);
  options.blocks = 2;
  options.one_microbatch = true;
  try {
    run(options);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("second microbatch"), std::string::npos) << error.what();
  }
}

TEST(WrittenMainGrad, HasTheBitsOfSumsOnAGpu) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const bool graph : {false, true})
    for (const models::DecoderConfig& model : {testing::odd_model(), testing::balanced_model()}) {
      RunOptions options = one_block(model, quant::DType::bf16);
      if (model.experts) options.experts = nn::ExpertDegrees{};
      options.on_gpu = true;
      options.graph = graph;
      options.steps = 8;
      options.ahead = 1;
      check(options, graph ? "graph" : "enqueued");
    }
}

}  // namespace
}  // namespace tessera::train
