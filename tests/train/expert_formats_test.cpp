// Runs of a model whose experts are stored and sent in number formats. Bits do not depend on where experts are stored.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

using quant::Format;

constexpr std::array kFormats{Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4};

// All columns of a rank are even at etp 1 and 2, as 4-bit elements require.
models::DecoderConfig even_experts() {
  models::DecoderConfig config = sparse_model();
  config.intermediate_size = 38;
  config.num_heads = 4, config.num_kv_heads = 2;  // parts of tp 2 share no head
  config.experts->width = 12;
  return config;
}

struct Mesh {
  int tp, gtp, dp, etp, ep, egtp;
  bool zero = false;
};

RunOptions options_of(const Mesh& mesh, Format wire, std::optional<Format> backward = std::nullopt) {
  return {.model = even_experts(),
          .tp = mesh.tp,
          .gtp = mesh.gtp,
          .dp = mesh.dp,
          .experts = nn::ExpertDegrees{.etp = mesh.etp, .ep = mesh.ep, .egtp = mesh.egtp},
          .zero = mesh.zero,
          .dtype = quant::DType::bf16,
          .sequence_parallel = mesh.tp > 1,
          .blocks = 4,
          .wire = wire,
          .wire_backward = backward};
}

// Storage over egtp, edp and dp, ZeRO-1, memory, recomputation and the pass that finds the amaxes change no bit.
TEST(ExpertFormats, HaveTheSameBitsWhereverExpertsAreStored) {
  for (const Format wire : kFormats)
    for (const std::optional<Format> backward : {std::optional<Format>(), std::optional(Format::mxfp8)}) {
      const RunResult expected = run(options_of({1, 4, 1, 1, 1, 1}, wire, backward));
      EXPECT_EQ(expected.skipped, std::vector<bool>(expected.skipped.size(), false));
      const std::string what = fmt::format("{} backward {}", name_of(wire), name_of(backward.value_or(wire)));
      expect_same_bits(expected, run(options_of({1, 4, 1, 1, 1, 4}, wire, backward)), what + " egtp 4");
      RunOptions options = options_of({1, 4, 1, 1, 1, 2}, wire, backward);  // edp 2
      options.replay.poison = true;
      options.recompute = nn::Recompute::full;
      expect_same_bits(expected, run(options), what + " egtp 2 edp 2");
    }
}

TEST(ExpertFormats, HaveTheSameBitsWithExpertsOfSeveralOwners) {
  for (const Format wire : kFormats) {
    const RunResult expected = run(options_of({2, 2, 1, 2, 1, 1}, wire));
    expect_same_bits(expected, run(options_of({2, 2, 1, 2, 1, 2}, wire)), fmt::format("{} etp 2", name_of(wire)));
    const RunResult owners = run(options_of({1, 4, 1, 1, 2, 1}, wire));
    expect_same_bits(owners, run(options_of({1, 4, 1, 1, 2, 2}, wire)), fmt::format("{} ep 2", name_of(wire)));
    const RunResult replicas = run(options_of({1, 2, 2, 1, 1, 1}, wire));
    expect_same_bits(replicas, run(options_of({1, 2, 2, 1, 1, 2, true}, wire)),
                     fmt::format("{} with ZeRO-1", name_of(wire)));
  }
}

TEST(ExpertFormats, ReachTheExperts) {
  for (const Format wire : kFormats) {
    RunOptions options = options_of({1, 1, 1, 1, 1, 1}, wire, Format::mxfp8);
    options.steps = 1;
    options.before_step = [&](Trainer& trainer, int) {
      const runtime::Runtime& runtime = trainer.runtime();
      int experts = 0;
      for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
        const shard::ParameterSpec& spec = trainer.runtime().parameter(id).spec;
        if (spec.dims.size() != 3) continue;
        ++experts;
        EXPECT_EQ(spec.encoding, quant::weight_encoding(wire)) << spec.name;
        EXPECT_EQ(spec.backward.has_value(), wire != Format::mxfp8) << spec.name;
      }
      EXPECT_EQ(experts, 4);
    };
    run(options);
  }
}

// One element of the first or of the last expert is not finite. The other experts of the same weight are finite. Every
// step is skipped on every rank, and the run continues after the element is finite again.
TEST(ExpertFormats, AValueThatIsNotFiniteSkipsSteps) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  int number = 0;
  for (const Format wire : kFormats)
    for (const std::string name : {"layers.0.experts.gate_up.weight", "layers.1.experts.down.weight"})
      for (const bool is_last : {false, true}) {
        const float value = number++ % 2 == 0 ? kInf : kNaN;
        SCOPED_TRACE(fmt::format("{} {} {} of the {} expert", name_of(wire), name, value, is_last ? "last" : "first"));
        RunOptions options = options_of({1, 4, 1, 1, 1, 4}, wire);
        const std::int64_t rows =
            name.find("gate_up") != std::string::npos ? 2 * options.model.experts->width : options.model.hidden_size;
        const std::int64_t changed = is_last ? options.model.experts->count * rows - 1 : 0;
        options.before_step = [&](Trainer& trainer, int step) {
          if (step != 0 && step != 2) return;
          set_elements(trainer, name, [&](std::int64_t row, std::int64_t col, float old) {
            return row == changed && col == 1 ? (step == 0 ? value : 0.01F) : old;
          });
        };
        EXPECT_EQ(run(options).skipped, (std::vector<bool>{true, true, false}));
      }
}

}  // namespace
}  // namespace tessera::train::testing
