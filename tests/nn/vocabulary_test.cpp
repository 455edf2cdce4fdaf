// Tests the layers that are sharded by rows of the vocabulary: the embedding, gathered and by rows, and the output
// layer's loss.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/output_loss.h"
#include "tests/nn/layer_check.h"
#include "tests/nn/plain_formulas.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kVocabulary = 11, kDepth = 6;

// At tp 2 a rank has two ranges of ids if the case requires it.
RankRanges vocabulary_parts(int tp, bool in_ranges) {
  if (tp == 2 && in_ranges) return {{{7, 11}, {0, 2}}, {{2, 7}}};
  return uneven_parts(kVocabulary, tp);
}

ops::IdRanges ids_of(const RankRanges& parts, const Context& context) {
  ops::IdRanges ids;
  for (const layout::Range& range : parts[static_cast<std::size_t>(context.tp_rank())])
    ids.add(range.begin, range.size());
  return ids;
}

// Some ids are repeated, others are missing.
at::Tensor tokens_of(const Sample& sample, std::int64_t count) {
  return at::arange(count, at::kLong).mul(3).add(sample.number).square().remainder(kVocabulary);
}

// Every third target is masked.
at::Tensor targets_of(const Sample& sample, std::int64_t count) {
  at::Tensor targets = at::arange(count, at::kLong).mul(5).add(2 * sample.number).remainder(kVocabulary);
  for (std::int64_t i = 2; i < count; i += 3) targets[i] = -1;
  return targets;
}

at::Tensor embedded(LayerRank& rank, const RankRanges& parts, const at::Tensor& tokens, const at::Tensor& early) {
  const VocabEmbedding& embedding =
      rank.keep(VocabEmbedding{.weight = rank.weight("table"), .part = ids_of(parts, rank.context)});
  const at::Tensor anchor = at::zeros({}).requires_grad_(at::GradMode::is_enabled());
  return embed(rank.pass, embedding, tokens, early, anchor);
}

Layer embedding_layer(const RankRanges& parts, const shard::RowReads& reads, bool early) {
  Layer layer;
  layer.weights.push_back(by_rows("table", kVocabulary, kDepth, parts));
  layer.weights.back().reads = reads;
  layer.outputs.push_back(own_tokens());
  layer.forward = [=, count = layer.tokens](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    const at::Tensor& tokens = rank.keep(tokens_of(sample, count));
    return {embedded(rank, parts, tokens, early ? rank.keep(tokens.clone()) : at::Tensor())};
  };
  layer.reference = [count = layer.tokens](const LogicalWeights& weights,
                                           const Sample& sample) -> std::vector<at::Tensor> {
    return {weights.at("table").index_select(0, tokens_of(sample, count))};
  };
  return layer;
}

TEST(Embed, ReturnsEachTokensRow) {
  for (const bool in_ranges : {false, true})
    for (LayerCase how : layer_cases()) {
      check_layer(embedding_layer(vocabulary_parts(how.tp, in_ranges), {}, false), how);
      how.frozen = "table";
      check_layer(embedding_layer(vocabulary_parts(how.tp, in_ranges), {}, false), how);
    }
}

// Rows travel between the ranks that store the table. If only one rank stores it, no row travels.
TEST(Embed, RowsByIndexGiveTheSameResult) {
  for (LayerCase how : layer_cases())
    for (const bool early : {false, true})
      for (const std::string frozen : {"", "table"}) {
        how.uses = 1;  // rows are sent once in each pass
        how.frozen = frozen;
        const shard::RowReads reads{.per_microbatch = 7, .lookup = shard::Lookup::rows};
        const LayerEvents events = check_layer(embedding_layer(vocabulary_parts(how.tp, false), reads, early), how);
        EXPECT_EQ(events.first_rank.front() == "forward consume table", how.gtp == 1) << events.first_rank.front();
      }
}

at::Tensor loss_of(LayerRank& rank, const RankRanges& parts, const char* name, const at::Tensor& hidden,
                   const at::Tensor& targets) {
  constexpr double kScale = 0.3;
  const VocabOutput& output = rank.keep(VocabOutput{.weight = rank.weight(name), .part = ids_of(parts, rank.context)});
  const Loss loss = output_loss(rank.pass, output, hidden, targets, kScale);
  EXPECT_EQ(loss.sum.scalar_type(), at::kDouble);
  if (!at::GradMode::is_enabled()) return loss.sum.mul(kScale);
  EXPECT_EQ(loss.objective.item<double>(), kScale * loss.sum.item<double>());
  return loss.objective;
}

at::Tensor plain_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  const at::Tensor log_probabilities = plain_linear(hidden, weight).log_softmax(1);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (std::int64_t i = 0; i < targets.size(0); ++i)
    if (const std::int64_t target = targets[i].item<std::int64_t>(); target >= 0)
      sum = sum - log_probabilities[i][target];
  return sum * 0.3;
}

Layer loss_layer(const RankRanges& parts) {
  Layer layer;
  layer.weights.push_back(by_rows("output", kVocabulary, kDepth, parts));
  layer.inputs.push_back({kDepth, own_tokens()});
  layer.outputs.push_back(all_tokens());
  layer.forward = [=, count = layer.tokens](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    return {loss_of(rank, parts, "output", sample.inputs[0], targets_of(sample, count))};
  };
  layer.reference = [count = layer.tokens](const LogicalWeights& weights,
                                           const Sample& sample) -> std::vector<at::Tensor> {
    return {plain_loss(sample.inputs[0], weights.at("output"), targets_of(sample, count))};
  };
  return layer;
}

TEST(OutputLoss, MatchesTheCrossEntropyOfTheWholeVocabulary) {
  for (const bool in_ranges : {false, true})
    for (LayerCase how : layer_cases()) {
      check_layer(loss_layer(vocabulary_parts(how.tp, in_ranges)), how);
      how.frozen = "output";
      check_layer(loss_layer(vocabulary_parts(how.tp, in_ranges)), how);
    }
}

// fp32 rounds logits and sums by 2^-24. bf16 rounds logits and their gradient by 2^-9 of them. Over tp each rank's part
// of the gradient of `hidden` is rounded once more.
TEST(OutputLoss, InOtherTypesIsWithinRounding) {
  for (LayerCase how : layer_cases())
    for (const auto& [type, tolerance] : {std::pair{quant::DType::fp32, 1e-5}, std::pair{quant::DType::bf16, 0x1p-6}}) {
      how.type = type;
      how.tolerance = tolerance;
      check_layer(loss_layer(vocabulary_parts(how.tp, true)), how);
    }
}

// 7 tokens with 4 logits and 3 x 6 numbers of hidden; 7 numbers for the maximum and twice as many for the sums.
TEST(OutputLoss, RecordsItsPhases) {
  const LayerCase how{.tp = 2, .sequence_parallel = true, .microbatches = 1, .uses = 1};
  const std::int64_t kept = (7 * 6 + 3 * 6) * 8;
  EXPECT_EQ(check_layer(loss_layer(vocabulary_parts(how.tp, true)), how).first_rank,
            (std::vector<std::string>{"forward comm all_gather 144", "forward consume output", "forward release output",
                                      "forward comm all_reduce max 56", "forward comm all_reduce sum 112",
                                      "forward stash keep " + std::to_string(kept),
                                      "backward fetch keep " + std::to_string(kept), "backward comm all_gather 144",
                                      "backward consume output", "backward release output",
                                      "backward comm reduce_scatter 336", "backward produce output"}));
}

// The output layer also uses the table. Both gradients are added in one buffer.
TEST(Embed, ATiedTableSumsBothGradients) {
  for (const LayerCase& how : layer_cases()) {
    const RankRanges parts = vocabulary_parts(how.tp, true);
    Layer layer;
    layer.weights.push_back(by_rows("table", kVocabulary, kDepth, parts));
    layer.outputs.push_back(all_tokens());
    layer.forward = [=, count = layer.tokens](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
      const at::Tensor hidden = embedded(rank, parts, tokens_of(sample, count), {});
      return {loss_of(rank, parts, "table", hidden, targets_of(sample, count))};
    };
    layer.reference = [count = layer.tokens](const LogicalWeights& weights,
                                             const Sample& sample) -> std::vector<at::Tensor> {
      const at::Tensor& table = weights.at("table");
      return {plain_loss(table.index_select(0, tokens_of(sample, count)), table, targets_of(sample, count))};
    };
    check_layer(layer, how);
  }
}

}  // namespace
}  // namespace tessera::nn
