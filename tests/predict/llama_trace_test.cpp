// The trace written from sizes against the one that the runtime records, event by event on every rank.
#include "tessera/predict/llama_trace.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/models/decoder.h"
#include "tessera/nn/dense_mesh.h"

namespace tessera::predict {
namespace {

constexpr std::int64_t kSequences = 2, kLength = 7;  // 14 tokens: 3 tp ranks have unequal parts

// Nothing divides by 2 or 3; with 3 tp ranks key/value heads overlap.
models::DecoderConfig odd_model(bool tied) {
  models::DecoderConfig config;
  config.vocab_size = 19;
  config.hidden_size = 11;
  config.intermediate_size = 7;
  config.num_layers = 2;
  config.num_heads = 10;
  config.num_kv_heads = 5;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = tied;
  return config;
}

models::Batch make_batch() {
  models::Batch batch;
  batch.tokens = at::zeros({kSequences * kLength}, at::kLong);
  batch.targets = at::zeros({kSequences * kLength}, at::kLong);
  batch.layout = {.batch = kSequences,
                  .seq_len = kLength,
                  .positions = at::arange(kLength, at::kLong).repeat({kSequences}),
                  .cu_seqlens = {0, 3, kLength, 2 * kLength}};
  return batch;
}

schedule::Trace recorded(comm::World& world, const models::DecoderConfig& config, const LlamaTraceOptions& options) {
  shard::Parallel parallel = nn::dense_parallel(world, options.tp_size, options.row_ranks, 1);
  shard::FormatPolicy products;
  if (!options.products.empty())
    products.rules.push_back({"layers.*", std::ranges::max(options.products)});  // of all their matrices
  runtime::Runtime runtime(
      parallel, {.model = options.dtype, .accumulator = quant::accumulator_of(options.dtype), .wire = options.dtype},
      {.products = products});
  nn::Context context{.runtime = runtime,
                      .sequence_parallel = options.sequence_parallel,
                      .recompute = options.recompute,
                      .split = options.split};
  const shard::Lookup lookup = options.row_ranks > 1 ? shard::Lookup::rows : shard::Lookup::gather;
  models::Decoder model(config, context,
                        {.max_positions = kLength,
                         .embedding = {.per_microbatch = kSequences * kLength, .lookup = lookup},
                         .parts = options.parts});
  const bool train = options.kind == schedule::StepKind::train;
  const at::AutoGradMode gradients(train);
  runtime.begin_step(options.kind, options.microbatches);
  for (int microbatch = 0; microbatch < options.microbatches; ++microbatch) {
    runtime.begin_microbatch();
    const nn::Loss loss = model.forward(make_batch(), train ? 1.0 : 0.0);
    if (train) loss.objective.backward();
    runtime.end_microbatch();
  }
  runtime.end_step();
  return runtime.trace();
}

void expect_same(const schedule::Trace& recorded, const schedule::Trace& written) {
  for (std::size_t i = 0; i < std::min(recorded.size(), written.size()); ++i)
    ASSERT_EQ(recorded[i], written[i]) << "event " << i << ": recorded " << to_string(recorded[i]) << ", written "
                                       << to_string(written[i]);
  ASSERT_EQ(recorded.size(), written.size());
}

schedule::Trace body_of(schedule::Trace trace) {
  const auto is_publish = [](const schedule::Event& event) { return event.kind == schedule::EventKind::publish; };
  trace.erase(std::find_if(trace.begin(), trace.end(), is_publish), trace.end());
  return trace;
}

void compare(const models::DecoderConfig& config, LlamaTraceOptions options) {
  options.tokens = kSequences * kLength;
  comm::run_local(options.tp_size * options.row_ranks, {}, [&config, options](comm::World& world) {
    LlamaTraceOptions own = options;
    own.tp_rank = world.rank() % options.tp_size;
    expect_same(recorded(world, config, own), body_of(llama_trace(config, own)));
  });
}

class LlamaTrace : public ::testing::TestWithParam<std::tuple<nn::Recompute, bool, int, bool>> {};

TEST_P(LlamaTrace, IsWhatTheRuntimeRecords) {
  const auto [recompute, tied, tp, sequence_parallel] = GetParam();
  for (const int microbatches : {1, 3})
    compare(odd_model(tied), {.tp_size = tp,
                              .sequence_parallel = sequence_parallel,
                              .recompute = recompute,
                              .microbatches = microbatches,
                              .dtype = microbatches == 1 ? quant::DType::fp32 : quant::DType::bf16});
}

TEST_P(LlamaTrace, OfAnEvaluationKeepsNothing) {
  const auto [recompute, tied, tp, sequence_parallel] = GetParam();
  compare(odd_model(tied), {.tp_size = tp,
                            .sequence_parallel = sequence_parallel,
                            .recompute = recompute,
                            .kind = schedule::StepKind::evaluate,
                            .microbatches = 2});
}

INSTANTIATE_TEST_SUITE_P(
    Models, LlamaTrace,
    ::testing::Combine(::testing::Values(nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full),
                       ::testing::Bool(), ::testing::Values(1, 2, 3), ::testing::Bool()),
    [](const auto& info) {
      return std::string(name_of(std::get<0>(info.param))) + (std::get<1>(info.param) ? "_tied" : "_untied") + "_tp" +
             std::to_string(std::get<2>(info.param)) + (std::get<3>(info.param) ? "_sequence" : "");
    });

TEST(LlamaTraceRows, AreWhatTheRuntimeRecords) {
  for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::full})
    for (const int tp : {1, 3})
      for (const bool sequence_parallel : {false, true})
        for (const schedule::StepKind kind : {schedule::StepKind::train, schedule::StepKind::evaluate})
          compare(odd_model(false), {.tp_size = tp,
                                     .sequence_parallel = sequence_parallel,
                                     .recompute = recompute,
                                     .kind = kind,
                                     .microbatches = 2,
                                     .row_ranks = 2,
                                     .dtype = quant::DType::bf16});
}

TEST(LlamaTraceParts, OfUnevenRanksAreWhatTheRuntimeRecords) {
  const models::TpParts parts{.heads = {{{0, 1}, {9, 10}}, {}, {{1, 9}}},
                              .ffn = {{}, {{6, 7}, {0, 2}}, {{2, 6}}},
                              .vocabulary = {{{0, 3}, {18, 19}}, {{3, 18}}, {}}};
  for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::full})
    for (const bool sequence_parallel : {false, true})
      compare(odd_model(true), {.tp_size = 3,
                                .sequence_parallel = sequence_parallel,
                                .split = {{0, 3, 1}},
                                .parts = parts,
                                .recompute = recompute});
}

// By parameter id: the matrices of blocks, and no others.
std::vector<quant::Format> products_of_blocks(const models::DecoderConfig& config, quant::Format format) {
  const models::DecoderIds ids = models::decoder_ids(config);
  std::vector<quant::Format> products(static_cast<std::size_t>(std::max(ids.norm, ids.output)) + 1);
  for (const models::DecoderBlockIds& block : ids.blocks)
    for (const schedule::ParameterId id : {block.qkv, block.attention_output, block.gate_up, block.down})
      products[static_cast<std::size_t>(id)] = format;
  return products;
}

// Scales of whole matrices over one rank, of tiles over two: neither takes amaxes together.
TEST(LlamaTraceProducts, KeepTheOperandsOfBackward) {
  for (const auto& [format, tp] : {std::pair{quant::Format::fp8, 1}, {quant::Format::fp8_block, 2}})
    for (const bool sequence_parallel : {false, true})
      for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full})
        compare(odd_model(false), {.tp_size = tp,
                                   .sequence_parallel = sequence_parallel,
                                   .recompute = recompute,
                                   .dtype = quant::DType::bf16,
                                   .products = products_of_blocks(odd_model(false), format)});
}

// 2 x 7 tokens, hidden 11, fp64: a block keeps its norm's result and input (11 + 11 a token) and statistics (1), q, k,
// v and softmax (10 + 5 + 5 heads of 4, and 10), the attention's result (40), the second norm the same 23, SwiGLU's
// input and result (14 + 7).
TEST(LlamaTraceStashes, CountWhatABlockKeeps) {
  const models::DecoderConfig config = odd_model(false);
  const auto stashed = [&](nn::Recompute recompute) {
    std::vector<std::int64_t> values;  // fp64 values a token, of the first block and what follows the blocks
    for (const schedule::Event& event :
         llama_trace(config, {.recompute = recompute, .tokens = 14, .dtype = quant::DType::fp64}))
      if (event.kind == schedule::EventKind::stash) values.push_back(event.bytes / 8 / 14);
    return values;
  };
  EXPECT_EQ(stashed(nn::Recompute::none),
            (std::vector<std::int64_t>{23, 90, 40, 23, 21, 23, 90, 40, 23, 21, 12, 19 + 11}));
  EXPECT_EQ(stashed(nn::Recompute::selective),
            (std::vector<std::int64_t>{12, 90, 40, 12, 14, 12, 90, 40, 12, 14, 12, 30}));
  // The blocks' inputs (h; h and residual), then in backward each block again, the last first.
  EXPECT_EQ(stashed(nn::Recompute::full),
            (std::vector<std::int64_t>{11, 22, 12, 30, 23, 90, 40, 23, 21, 23, 90, 40, 23, 21}));
}

TEST(LlamaTracePublishes, FollowTheOrderOfFirstUse) {
  for (const int row_ranks : {1, 2}) {
    const schedule::Trace trace =
        llama_trace(odd_model(row_ranks == 1), {.microbatches = 2, .tokens = 14, .row_ranks = row_ranks});
    std::vector<schedule::ParameterId> published;
    for (const schedule::Event& event : trace)
      if (event.kind == schedule::EventKind::publish) published.push_back(event.parameter);
    std::vector<schedule::ParameterId> all(row_ranks == 1 ? 14 : 15);  // embedding, 2 x 6, norm, output unless tied
    for (std::size_t id = 0; id < all.size(); ++id) all[id] = static_cast<schedule::ParameterId>(id);
    EXPECT_EQ(published, all);
    EXPECT_TRUE(std::is_partitioned(trace.begin(), trace.end(), [](const schedule::Event& event) {
      return event.kind != schedule::EventKind::publish;
    }));
  }
}

// Tied, 14 parameters: each bucket's message has a number for each of its encoded weights, if one of them needs it.
TEST(LlamaTracePublishes, FollowTheAmaxesOfTheirBucket) {
  LlamaTraceOptions options{.tokens = 14};
  options.casts.assign(14, {.elements = 10, .is_encoded = true});
  options.casts[0] = {.elements = 100};  // the embedding fills the first buckets
  options.casts[12] = {.elements = 10};  // travels as it is
  options.casts[2].has_tensor_scale = options.casts[13].has_tensor_scale = true;
  const schedule::Trace trace = llama_trace(odd_model(true), options);
  std::vector<std::string> behind;
  for (const schedule::Event& event : trace)
    if (event.microbatch < 0) behind.push_back(to_string(event));
  ASSERT_EQ(behind.size(), 16u);
  EXPECT_EQ(behind[0], "train publish #0 (0)");
  EXPECT_EQ(behind[1], "train comm casts all_reduce max 8 bytes");
  EXPECT_EQ(behind[2], "train publish #1 (0)");
  EXPECT_EQ(behind[13], "train comm casts all_reduce max 4 bytes");
}

TEST(LlamaTraceSizes, RefusesSizesThatAreNone) {
  EXPECT_THROW(llama_trace(odd_model(true), {.tp_size = 2, .tp_rank = 2}), Error);
  EXPECT_THROW(llama_trace(odd_model(true), {.microbatches = 0}), Error);
}

}  // namespace
}  // namespace tessera::predict
