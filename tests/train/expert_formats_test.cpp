// Runs of a model whose experts are stored and sent in number formats. Bits do not depend on where experts are stored.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/compare_runs.h"
#include "tests/train/pairwise.h"
#include "tests/train/training.h"

namespace tessera::train::expert_formats {
namespace {

using quant::Format;
using testing::Choice;
using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

constexpr std::array kFormats{Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4};

// All columns of a rank are even at etp 1 and 2, as 4-bit elements require.
models::DecoderConfig even_experts() {
  models::DecoderConfig config = testing::sparse_model();
  config.intermediate_size = 38;
  config.num_heads = 4, config.num_kv_heads = 2;  // parts of tp 2 share no head
  config.experts->width = 12;
  return config;
}

struct Mesh {
  int tp, gtp, dp, etp, ep, egtp;
};

RunOptions options_of(const Mesh& mesh, Format wire, std::optional<Format> backward = std::nullopt) {
  return {.model = even_experts(),
          .tp = mesh.tp,
          .gtp = mesh.gtp,
          .dp = mesh.dp,
          .experts = nn::ExpertDegrees{.etp = mesh.etp, .ep = mesh.ep, .egtp = mesh.egtp},
          .dtype = quant::DType::bf16,
          .sequence_parallel = mesh.tp > 1,
          .blocks = 4,
          .wire = wire,
          .wire_backward = backward};
}

enum Factor { kKind, kStorage, kWire, kProducts, kRecompute, kMemory, kPoison, kDelays, kZero, kCoalesce };
const std::vector<int> kLevels{5, 2, 4, 2, 3, 2, 2, 2, 2, 2};  // number of levels of each factor

int level(const Choice& choice, Factor factor) {
  return choice[static_cast<std::size_t>(factor)];
}

// Meshes of one kind have equal tp, dp, etp and ep. The first mesh of a kind has the least gtp and egtp 1.
constexpr Mesh kMeshes[][3] = {{{1, 2, 1, 1, 1, 1}, {1, 4, 1, 1, 1, 4}, {1, 4, 1, 1, 1, 2}},
                               {{2, 1, 1, 2, 1, 1}, {2, 2, 1, 2, 1, 2}, {2, 2, 1, 2, 1, 1}},
                               {{1, 2, 1, 1, 2, 1}, {1, 4, 1, 1, 2, 2}, {1, 4, 1, 1, 2, 1}},
                               {{2, 1, 1, 1, 2, 1}, {2, 2, 1, 1, 2, 2}, {2, 2, 1, 1, 2, 1}},
                               {{1, 1, 2, 1, 1, 1}, {1, 2, 2, 1, 1, 2}, {1, 2, 2, 1, 1, 1}}};

RunOptions options_of(const Choice& choice) {
  constexpr std::pair<Format, std::optional<Format>> kPairs[] = {{Format::nvfp4, Format::mxfp8},
                                                                 {Format::mxfp8, Format::nvfp4},
                                                                 {Format::fp8, std::nullopt},
                                                                 {Format::fp8_block, std::nullopt}};
  const auto& [wire, backward] = kPairs[level(choice, kWire)];
  RunOptions options = options_of(kMeshes[level(choice, kKind)][1 + level(choice, kStorage)], wire, backward);
  options.products = level(choice, kProducts) == 0 ? Format::bf16 : Format::nvfp4;
  options.steps = 20;
  options.clip = 0.5;
  options.recompute = static_cast<nn::Recompute>(level(choice, kRecompute));
  options.least_memory = level(choice, kMemory) == 1;
  options.replay = {.poison = level(choice, kPoison) == 1,
                    .delay_seed = level(choice, kDelays) == 0 ? 0U : 5U,
                    .longest_delay = 0.0003};
  options.zero = level(choice, kZero) == 1;
  options.coalesce_bytes = level(choice, kCoalesce) == 0 ? 0 : 1 << 20;
  return options;
}

// Storage over egtp, edp and dp, memory and recomputation change no bit, also with the recipe of nvfp4. The runs are a
// pairwise covering set. The seed is printed; TESSERA_COVER_SEED sets it. tests/e2e/test_expert_pairs.py also has
// processes.
TEST(ExpertFormats, HaveTheSameBitsWhereverExpertsAreStored) {
  const unsigned seed = testing::number_of_environment("TESSERA_COVER_SEED", 1);
  const std::vector<Choice> choices = testing::pairwise_set(kLevels, seed, [](const Choice&) { return true; });
  fmt::print("seed {}: {} runs cover all pairs of values\n", seed, choices.size());
  std::map<std::array<int, 3>, RunResult> results;  // of the first mesh of a kind, by kind and formats
  for (const Choice& choice : choices) {
    RunOptions options = options_of(choice);
    const auto [found, is_new] =
        results.try_emplace({level(choice, kKind), level(choice, kWire), level(choice, kProducts)});
    RunResult& expected = found->second;
    if (is_new) {
      RunOptions first = options_of(kMeshes[level(choice, kKind)][0], options.wire, options.wire_backward);
      first.products = options.products;
      first.steps = options.steps;
      first.clip = options.clip;
      expected = run(first);
      EXPECT_EQ(expected.skipped, std::vector<bool>(expected.skipped.size(), false));
      EXPECT_GT(*std::ranges::max_element(expected.norms), options.clip);
    }
    expect_same_bits(expected, run(options), fmt::format("choice {}", fmt::join(choice, " ")));
  }
}

TEST(ExpertFormats, ReachTheExperts) {
  for (const Format wire : kFormats) {
    RunOptions options = options_of({1, 1, 1, 1, 1, 1}, wire, Format::mxfp8);
    options.steps = 0;
    options.at_end = [&](Trainer& trainer) {
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
// step is skipped on every rank, also if another rank owns or stores the expert, and the run continues after the
// element is finite again. Each expert has both values, and each value is on both meshes.
TEST(ExpertFormats, AValueThatIsNotFiniteSkipsSteps) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const Format wire : kFormats)
    for (const std::string name : {"layers.0.experts.gate_up.weight", "layers.1.experts.down.weight"})
      for (const bool is_last : {false, true}) {
        const bool is_down = name.ends_with("down.weight"), is_odd = static_cast<int>(wire) % 2 != 0;
        const float value = is_down == is_last ? kInf : kNaN;
        SCOPED_TRACE(fmt::format("{} {} {} of the {} expert", name_of(wire), name, value, is_last ? "last" : "first"));
        RunOptions options = options_of(is_down == is_odd ? Mesh{1, 4, 1, 1, 1, 4} : Mesh{1, 4, 1, 1, 2, 2}, wire);
        const std::int64_t rows = is_down ? options.model.hidden_size : 2 * options.model.experts->width;
        const std::int64_t changed = is_last ? options.model.experts->count * rows - 1 : 0;
        options.before_step = [&](Trainer& trainer, int step) {
          if (step != 0 && step != 2) return;
          testing::set_elements(trainer, name, [&](std::int64_t row, std::int64_t col, float old) {
            return row == changed && col == 1 ? (step == 0 ? value : 0.01F) : old;
          });
        };
        EXPECT_EQ(run(options).skipped, (std::vector<bool>{true, true, false}));
      }
}

// Experts whose sizes on each rank are multiples of 16, so that products in fp8 can multiply codes.
models::DecoderConfig experts_of_codes() {
  models::DecoderConfig config = even_experts();
  config.hidden_size = 32, config.head_dim = 8;
  config.experts->width = 32;
  return config;
}

// Products that a GPU multiplies as codes leave a stack packed. A CPU decodes it at each use, and gets the same bits.
// With the recipe hybrid, only the forward product multiplies codes.
TEST(ExpertFormats, ProductsOfCodesHaveTheBitsOfDecodedProductsOnCpus) {
  for (const quant::Fp8Recipe recipe : {quant::Fp8Recipe::e4m3, quant::Fp8Recipe::hybrid})
    for (const auto& [wire, backward] : {std::pair<Format, std::optional<Format>>{Format::fp8, std::nullopt},
                                         {Format::bf16, std::nullopt},
                                         {Format::fp8, Format::bf16},
                                         {Format::nvfp4, Format::fp8}})
      for (const Mesh& mesh : {Mesh{1, 2, 1, 1, 2, 1}, {1, 2, 1, 1, 1, 2}, {2, 1, 1, 2, 1, 1}}) {
        SCOPED_TRACE(fmt::format("{} backward {} etp {} ep {} egtp {} recipe {}", name_of(wire),
                                 name_of(backward.value_or(wire)), mesh.etp, mesh.ep, mesh.egtp,
                                 static_cast<int>(recipe)));
        RunOptions options = options_of(mesh, wire, backward);
        options.model = experts_of_codes();
        options.steps = 2;
        options.products = Format::fp8;
        options.product_options.recipe = recipe;
        const RunResult expected = run(options);
        options.only_codes = true;
        expect_same_bits(expected, run(options), "codes");
        options.replay = {.poison = true, .delay_seed = 5U, .longest_delay = 0.0003};
        options.least_memory = true;
        expect_same_bits(expected, run(options), "codes with the least memory");
        options.least_memory = false;
        options.coalesce_bytes = 1 << 20;
        expect_same_bits(expected, run(options), "codes with joined messages");
      }
}

// Only experts are multiplied in nvfp4.
TEST(ExpertRecipe, EachPartAndTheSeedChangeTheGradients) {
  RunOptions options = options_of({2, 1, 1, 2, 1, 1}, Format::bf16);
  options.product_rules = {{.pattern = "layers.*.experts.*", .value = Format::nvfp4}};
  testing::expect_gradients_of_each_recipe(options);
}

TEST(ExpertRecipe, AGradientThatIsNotFiniteSkipsTheStepAndRepeatedStepsHaveTheSameBits) {
  RunOptions options = options_of({1, 2, 1, 1, 2, 1}, Format::nvfp4);
  options.products = Format::nvfp4;
  options.steps = 6;
  const RunResult expected = run(options);
  options.suppressed = {{1, 2}, {4, 1}};
  options.evaluated = {2, 3};
  const RunResult repeated = run(options);
  EXPECT_EQ(expected.losses, repeated.losses);
  EXPECT_EQ(expected.tensors, repeated.tensors);
  options.suppressed = {};
  options.spoiled = {2};
  EXPECT_EQ(run(options).skipped, (std::vector<bool>{false, false, true, false, false, false}));
}

}  // namespace
}  // namespace tessera::train::expert_formats
