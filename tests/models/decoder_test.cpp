// Tests the model's gradient against central differences of its loss in fp64, and the bookkeeping of its parts.
#include "tessera/models/decoder/decoder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/layout/dense.h"
#include "tessera/models/decoder/decoder_layouts.h"
#include "tessera/models/decoder/decoder_parameters.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/runtime/runtime.h"

namespace tessera::models {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

DecoderConfig small_model() {
  DecoderConfig config;
  config.vocab_size = 19;
  config.hidden_size = 10;
  config.intermediate_size = 7;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.initializer_range = 0.3;
  config.rope_scaling =
      RopeStretch{.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 8};
  return config;
}

Batch batch_of(std::int64_t sequences, std::int64_t length, std::int64_t vocab) {
  const std::int64_t n = sequences * length;
  Batch batch;
  batch.tokens = at::empty({n}, at::kLong);
  batch.targets = at::empty({n}, at::kLong);
  batch.layout = {.batch = sequences, .seq_len = length, .positions = at::empty({n}, at::kLong), .cu_seqlens = {}};
  for (std::int64_t i = 0; i < n; ++i) {
    batch.tokens.data_ptr<std::int64_t>()[i] = (i * 7 + 3) % vocab;
    batch.targets.data_ptr<std::int64_t>()[i] = i % 5 == 4 ? -1 : (i * 11 + 1) % vocab;
    batch.layout.positions.data_ptr<std::int64_t>()[i] = i % length;
  }
  return batch;
}

void fill(runtime::Runtime& runtime) {
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
    auto values = runtime.parameter(id).weight().as<double>();
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 0.4 * std::sin(static_cast<double>(i) * 1.7 + id) + (runtime.parameter(id).spec.decay ? 0.0 : 1.0);
    runtime.program().publish(id);
  }
}

double loss_of(Model& model, runtime::Runtime& runtime, const nn::PassState& pass, const Batch& batch) {
  const at::NoGradGuard none;
  runtime.program().begin_step(schedule::StepKind::evaluate, 1);
  runtime.program().begin_microbatch(0);
  const double loss = model.forward(batch, pass, 0).sum.item<double>();
  runtime.program().end_microbatch(0);
  runtime.program().end_step();
  return loss;
}

struct Options {
  const char* name;
  bool has_qkv_bias, has_head_norms;
};
constexpr Options kPlain{"plain", false, false}, kBias{"bias", true, false}, kHeadNorms{"head_norms", false, true};

class Gradient : public ::testing::TestWithParam<std::tuple<Options, bool, nn::Recompute>> {};

// With step h = 1e-5, a central difference of a loss of about 10 has an error of h^2 f''' / 6 + 1e-15 * 10 / h. That is
// some 1e-9, compared with derivatives of about 0.1; the bound is 1e-6 of the largest derivative.
TEST_P(Gradient, IsTheDerivativeOfTheLoss) {
  comm::run_local(1, {}, [](comm::World& world) {
    const auto [options, tied, recompute] = GetParam();
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, nn::rank_layout({}));
    constexpr quant::DType type = quant::DType::fp64;
    runtime::Runtime runtime(parallel, {.model = type, .accumulator = type, .wire = type});
    nn::Context context{.program = runtime.program(), .recompute = recompute};
    DecoderConfig config = small_model();
    config.tie_word_embeddings = tied;
    config.has_qkv_bias = options.has_qkv_bias;
    config.has_head_norms = options.has_head_norms;
    Decoder model(config, context, {.max_positions = 6});
    fill(runtime);
    const Batch batch = batch_of(2, 6, config.vocab_size);
    const nn::PassState pass{.context = context, .id = {0}};

    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    const nn::Loss loss = model.forward(batch, pass, 1.0);
    loss.objective.backward();
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
    EXPECT_NEAR(loss.sum.item<double>(), loss_of(model, runtime, pass, batch), 1e-12 * loss.sum.item<double>());

    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
      shard::ShardedParameter& parameter = runtime.parameter(id);
      auto weights = parameter.weight().as<double>();
      const auto gradient = parameter.main_grad.as<double>();
      double largest = 0;
      for (double value : gradient) largest = std::max(largest, std::abs(value));
      EXPECT_GT(largest, 0) << parameter.spec.name;
      for (std::size_t i = 0; i < weights.size(); i += 1 + weights.size() / 7) {
        constexpr double delta = 1e-5;
        const double before = weights[i];
        weights[i] = before + delta;
        const double above = loss_of(model, runtime, pass, batch);
        weights[i] = before - delta;
        const double below = loss_of(model, runtime, pass, batch);
        weights[i] = before;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * delta), 1e-6 * largest) << parameter.spec.name << " " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, Gradient,
                         ::testing::Combine(::testing::Values(kPlain, kBias, kHeadNorms), ::testing::Bool(),
                                            ::testing::Values(nn::Recompute::none, nn::Recompute::selective,
                                                              nn::Recompute::full)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}", std::get<0>(info.param).name,
                                              std::get<1>(info.param) ? "tied" : "untied",
                                              name_of(std::get<2>(info.param)));
                         });

TEST(DecoderLayouts, RefusesTooManyRangesOfTheVocabulary) {
  DecoderConfig config = small_model();
  config.vocab_size = 9;
  TpParts parts = even_parts(config, 1);
  std::vector<layout::Range>& rows = parts.vocabulary.front();
  rows.clear();
  for (std::int64_t row = 8; row >= 1; --row) rows.push_back({row, row + 1});
  parts.vocabulary.front().back() = {0, 2};
  EXPECT_NO_THROW(check_parts(config, parts));
  rows.back() = {1, 2};
  rows.push_back({0, 1});
  EXPECT_THAT([&] { check_parts(config, parts); }, ThrowsMessage<Error>(HasSubstr("expected at most 8")));
}

// Places 0, 2 and 3 of 4 share the units of place 1.
TEST(DecoderLayouts, RefusesUnitsThatAreAdoptedTwiceOrNever) {
  const DecoderConfig config = small_model();
  const TpParts parts = parts_of(config, 4, {0, 2, 3});
  EXPECT_NO_THROW(check_parts(config, parts));
  std::map<std::size_t, int> adopting;  // ranks, by number of ranges
  for (const auto member : {&TpParts::heads, &TpParts::ffn, &TpParts::vocabulary})
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const std::vector<layout::Range>& units = (parts.*member)[rank];
      ++adopting[units.size()];
      if (units.size() < 2) continue;  // the rank adopts nothing
      TpParts wrong = parts;
      (wrong.*member)[(rank + 1) % 3].push_back(units.back());
      EXPECT_THAT([&] { check_parts(config, wrong); }, ThrowsMessage<Error>(HasSubstr("must be on one tp rank")));
      wrong = parts;
      (wrong.*member)[rank].pop_back();
      EXPECT_THAT([&] { check_parts(config, wrong); }, ThrowsMessage<Error>(HasSubstr("must be on one tp rank")));
    }
  EXPECT_GE(adopting[2], 3);
}

TEST(DecoderLayouts, CoverEveryWeightForEveryTpDegree) {
  const DecoderConfig config = small_model();
  for (int tp = 1; tp <= 8; ++tp) {
    const TpParts parts = even_parts(config, tp);
    EXPECT_NO_THROW(check_parts(config, parts));
    for (const layout::Layout& layout :
         {qkv_layout(config, parts), attention_output_layout(config, parts), gate_up_layout(config, parts),
          qkv_bias_layout(config, parts), down_layout(config, parts), vocabulary_layout(config, parts)})
      EXPECT_NO_THROW(layout::validate(layout, layout::Cover::all)) << "tp " << tp;
    std::int64_t heads = 0;
    for (const std::vector<layout::Range>& q : parts.heads) heads += head_part(config, q).q_heads();
    EXPECT_EQ(heads, config.num_heads);
  }
}

TEST(DecoderLayouts, AKeyValueHeadIsOnEveryRankThatReadsIt) {
  const DecoderConfig config = small_model();  // 6 query heads, 2 key/value heads
  using Ranges = std::vector<layout::Range>;
  const auto part = [&](int rank, int tp) {
    return head_part(config, even_parts(config, tp).heads[static_cast<std::size_t>(rank)]);
  };
  EXPECT_EQ(part(1, 4).q, (Ranges{{1, 3}}));
  EXPECT_EQ(part(1, 4).kv, (Ranges{{0, 1}}));
  EXPECT_EQ(part(2, 4).q, (Ranges{{3, 4}}));
  EXPECT_EQ(part(2, 4).kv, (Ranges{{1, 2}}));
  EXPECT_EQ(part(1, 5).q, (Ranges{{1, 2}}));
  EXPECT_EQ(part(7, 8).kv, (Ranges{{1, 2}}));
  EXPECT_EQ(part(0, 8).q_heads(), 0);
  EXPECT_EQ(part(0, 8).kv_heads, 0);
}

TEST(DecoderLayouts, QueryHeadsOfSeveralRangesReadTheirKeyValueHeads) {
  DecoderConfig config = small_model();
  config.num_heads = 10;
  config.num_kv_heads = 5;
  const HeadPart part = head_part(config, {{7, 9}, {6, 7}, {1, 4}});
  EXPECT_EQ(part.kv_of_q, (std::vector<int>{0, 1, 0, 2, 3, 3}));
  EXPECT_EQ(part.kv, (std::vector<layout::Range>{{3, 5}, {0, 2}}));
  EXPECT_EQ(part.kv_heads, 4);
  EXPECT_EQ(head_part(config, {{0, 1}, {4, 5}}).kv, (std::vector<layout::Range>{{0, 1}, {2, 3}})) << "a gap";
  EXPECT_EQ(part.q_heads(), 6);
  // Rows of the rank: q 7, 8, 6, 1 to 3; k 3, 4, 0, 1; v the same. A head has 4 rows.
  const layout::Layout qkv = qkv_layout(config, {.heads = {{{7, 9}, {6, 7}, {1, 4}}}});
  std::vector<std::int64_t> heads;
  for (const layout::Piece& piece : qkv.ranks[0].pieces)
    for (std::int64_t row = 0; row < piece.box.rows; row += 4) heads.push_back((piece.box.row + row) / 4);
  EXPECT_EQ(heads, (std::vector<std::int64_t>{7, 8, 6, 1, 2, 3, 13, 14, 10, 11, 18, 19, 15, 16}));
}

// A rank's gate and up have the same columns in the same order as its rows of down.
TEST(DecoderLayouts, AdoptedColumnsFollowOwnColumnsInGateAndUp) {
  const DecoderConfig config = small_model();  // the model has 7 feed-forward columns
  const TpParts parts{.heads = {{}, {}}, .ffn = {{{0, 3}, {6, 7}}, {{3, 6}}}, .vocabulary = {}};
  EXPECT_EQ(gate_up_layout(config, parts),
            layout::rows_by_rank({14, 10}, {{{0, 3}, {6, 7}, {7, 10}, {13, 14}}, {{3, 6}, {10, 13}}}));
  EXPECT_EQ(down_layout(config, parts), layout::cols_by_rank({10, 7}, {{{0, 3}, {6, 7}}, {{3, 6}}}));
}

// docs/numerics.md: only matrices decay.
TEST(Parameters, DecayWhereTheyAreMatrices) {
  DecoderConfig config = small_model();
  config.has_qkv_bias = config.has_head_norms = true;
  int vectors = 0;
  for (const shard::ParameterSpec& spec : decoder_parameters(config, {.tp_size = 2})) {
    EXPECT_EQ(spec.decay, spec.dims.size() == 2) << spec.name;
    vectors += spec.decay ? 0 : 1;
  }
  EXPECT_EQ(vectors, 2 * 5 + 1);  // a block's bias, two norms and two norms of heads; the last norm
}

}  // namespace
}  // namespace tessera::models
