// Checks that a non-finite value skips the step in every number format, as in bf16 (docs/formats.md, "Values that are
// not finite").
#include "tessera/train/update/finite_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "tessera/base/device.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

using quant::Format;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kSteps = 3;  // number of steps: one is recorded, and two follow the schedule

struct Formats {
  Format wire = Format::bf16, products = Format::bf16;
  std::optional<Format> wire_backward;
  nn::Fp8Scaling scaling = nn::Fp8Scaling::delayed;
  bool recipe = true;  // whether nvfp4 products have the transform and stochastic rounding
};

std::ostream& operator<<(std::ostream& out, const Formats& formats) {
  out << name_of(formats.wire) << " " << name_of(formats.products);
  if (formats.wire_backward) out << " backward " << name_of(*formats.wire_backward);
  return out << (formats.scaling == nn::Fp8Scaling::current ? " current" : "")
             << (formats.recipe ? "" : " without recipe");
}

std::vector<Formats> all_formats() {
  std::vector<Formats> all;
  for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
    all.push_back({.wire = format});
    all.push_back({.products = format});
    all.push_back({.wire = format, .products = format});
    all.push_back({.wire_backward = format});
  }
  for (const Format wire : {Format::bf16, Format::fp8, Format::nvfp4})
    all.push_back({.wire = wire, .products = Format::fp8, .scaling = nn::Fp8Scaling::current});
  all.push_back({.wire = Format::nvfp4, .products = Format::fp8_block});
  all.push_back({.wire = Format::nvfp4, .products = Format::nvfp4, .recipe = false});
  all.push_back({.wire = Format::mxfp8, .wire_backward = Format::nvfp4});
  return all;
}

// All widths are even, as 4-bit elements require.
models::DecoderConfig even_model() {
  models::DecoderConfig config = odd_model();
  config.intermediate_size = 38;
  return config;
}

RunOptions options_of(const Formats& formats, int gtp = 1) {
  RunOptions options{.model = even_model(),
                     .gtp = gtp,
                     .dtype = quant::DType::bf16,
                     .blocks = 3,
                     .steps = kSteps,
                     .wire = formats.wire,
                     .products = formats.products,
                     .wire_backward = formats.wire_backward};
  options.product_options.scaling = formats.scaling;
  options.product_options.hadamard = formats.recipe;
  if (!formats.recipe) options.product_options.rounding = nn::GradientRounding::nearest;
  return options;
}

void set_one(Trainer& trainer, const std::string& name, float value) {
  set_elements(trainer, name,
               [&](std::int64_t row, std::int64_t col, float old) { return row == 11 && col == 7 ? value : old; });
}

// Sets an element of the weight to infinity or NaN before the first step.
RunOptions with_element(RunOptions options, const std::string& name, float value) {
  options.before_step = [name, value](Trainer& trainer, int step) {
    if (step == 0) set_one(trainer, name, value);
  };
  return options;
}

void expect_all_skipped(const RunOptions& options) {
  const RunResult result = run(options);
  EXPECT_EQ(result.skipped, std::vector<bool>(kSteps, true));
  EXPECT_EQ(result.updates, 0);
  for (const double norm : result.norms) EXPECT_FALSE(std::isfinite(norm)) << norm;
}

const std::vector<std::string> kMatrices{"layers.0.attention.qkv.weight", "layers.1.attention.output.weight",
                                         "layers.0.mlp.gate_up.weight", "layers.1.mlp.down.weight", "output.weight"};

TEST(NotFinite, AWeightSkipsEveryStep) {
  std::vector<Formats> cases = all_formats();
  cases.push_back({});
  // The cases contain every pair of a format and a matrix, and every pair of a value and a degree.
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (std::size_t j = 0; j < kMatrices.size(); ++j) {
      const float value = (i + j) % 2 == 0 ? -kInfinity : kNaN;
      const int gtp = (i + j) / 2 % 2 == 0 ? 1 : 3;
      SCOPED_TRACE(::testing::Message() << kMatrices[j] << " " << value << " " << cases[i] << " gtp " << gtp);
      expect_all_skipped(with_element(options_of(cases[i], gtp), kMatrices[j], value));
    }
}

TEST(NotFinite, FiniteRunsSkipNothing) {
  for (const Formats& formats : all_formats()) {
    SCOPED_TRACE(::testing::Message() << formats);
    const RunResult result = run(options_of(formats, 3));
    EXPECT_EQ(result.skipped, std::vector<bool>(kSteps, false));
    EXPECT_EQ(result.updates, kSteps);
  }
}

TEST(NotFinite, AProductInputSkipsEveryStep) {
  std::size_t number = 0;
  for (const Formats& formats : all_formats())
    for (const std::string name : {"layers.1.attention_norm.weight", "layers.0.mlp_norm.weight", "norm.weight"}) {
      const float value = number++ % 2 == 0 ? kInfinity : kNaN;
      SCOPED_TRACE(::testing::Message() << name << " " << value << " " << formats);
      RunOptions options = options_of(formats);
      options.before_step = [&](Trainer& trainer, int step) {
        if (step > 0) return;
        set_elements(trainer, name, [&](std::int64_t, std::int64_t col, float old) { return col == 7 ? value : old; });
      };
      expect_all_skipped(options);
    }
}

// The forward pass is finite, because attention returns 0 and the next weight multiplies this 0. The product of the
// weight and the gradient is infinite.
TEST(NotFinite, AProductGradientSkipsEveryStep) {
  std::vector<Formats> cases = all_formats();
  cases.push_back({});
  for (const Formats& formats : cases) {
    SCOPED_TRACE(::testing::Message() << formats);
    RunOptions options = options_of(formats);
    options.before_step = [](Trainer& trainer, int step) {
      if (step > 0) return;
      const auto constant = [&](const std::string& name, float value) {
        set_elements(trainer, name, [&](std::int64_t, std::int64_t, float) { return value; });
      };
      constant("layers.0.attention.qkv.weight", 0);
      constant("layers.0.attention.output.weight", 3e38F);
      set_elements(trainer, "output.weight", [](std::int64_t, std::int64_t, float old) { return 100 * old; });
    };
    const RunResult result = run(options);
    for (const double loss : result.losses) EXPECT_TRUE(std::isfinite(loss)) << loss;
    EXPECT_EQ(result.skipped, std::vector<bool>(kSteps, true));
    EXPECT_EQ(result.updates, 0);
  }
}

TEST(NotFinite, AWeightSkipsStepsUntilItIsCastFromFiniteValues) {
  for (const Formats& formats : all_formats()) {
    SCOPED_TRACE(::testing::Message() << formats);
    RunOptions options = options_of(formats, 3);
    options.steps = 5;
    options.before_step = [](Trainer& trainer, int step) {
      if (step == 1) set_one(trainer, "layers.0.mlp.down.weight", kInfinity);
      if (step == 3) set_one(trainer, "layers.0.mlp.down.weight", 0.25F);
    };
    const RunResult result = run(options);
    EXPECT_EQ(result.skipped, (std::vector<bool>{false, true, true, false, false}));
    EXPECT_EQ(result.updates, 3);
  }
}

TEST(NotFinite, AnEvaluationIsNaN) {
  std::vector<Formats> cases = all_formats();
  cases.push_back({});
  for (const std::string name : {"layers.0.mlp.down.weight", "layers.1.mlp_norm.weight"})
    for (const Formats& formats : cases) {
      if (formats.wire_backward) continue;  // evaluations have no backward
      SCOPED_TRACE(::testing::Message() << name << " " << formats);
      RunOptions options = options_of(formats, 3);
      std::vector<double> losses(3);
      options.after_step = [&](Trainer& trainer, int step) {
        const auto evaluate = [&] {
          return trainer.evaluate({.microbatches = 1, .tokens = 24, .batch = [&](int) { return sample(options, 5); }});
        };
        if (step < kSteps - 1) return;
        const double before = evaluate();
        set_elements(trainer, name,
                     [&](std::int64_t row, std::int64_t col, float old) { return row + col == 7 ? kInfinity : old; });
        const double spoiled = evaluate();
        set_elements(trainer, name,
                     [&](std::int64_t row, std::int64_t col, float old) { return row + col == 7 ? 1 : old; });
        const double after = evaluate();
        if (trainer.parallel().rank == 0) losses = {before, spoiled, after};
      };
      run(options);
      EXPECT_TRUE(std::isfinite(losses[0]) && std::isfinite(losses[2])) << losses[0] << " " << losses[2];
      EXPECT_TRUE(std::isnan(losses[1])) << losses[1];
    }
}

// Covers GPU products, with weights of all formats on the wire, with one step enqueued ahead and with a graph.
TEST(NotFiniteOnCuda, SkipsEveryStep) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const Formats& formats : all_formats()) {
    for (const bool graph : {false, true}) {
      RunOptions options = options_of(formats);
      options.on_gpu = true;
      options.graph = graph;
      options.ahead = 1;
      options.steps = 6;
      for (const std::string name : {"layers.0.mlp.down.weight", "layers.0.mlp_norm.weight"})
        for (const float value : {kInfinity, kNaN}) {
          SCOPED_TRACE(::testing::Message() << name << " " << value << " " << formats << (graph ? " graph" : ""));
          RunOptions spoiled = options;
          spoiled.before_step = [&](Trainer& trainer, int step) {
            if (step > 0) return;
            set_elements(trainer, name,
                         [&](std::int64_t, std::int64_t col, float old) { return col == 7 ? value : old; });
          };
          const RunResult result = run(spoiled);
          EXPECT_EQ(result.skipped, std::vector<bool>(6, true));
          EXPECT_EQ(result.updates, 0);
        }
      EXPECT_EQ(run(options).updates, 6) << formats;
    }
  }
}

}  // namespace
}  // namespace tessera::train::testing
