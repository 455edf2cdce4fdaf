#include "tessera/nn/llama.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "tessera/nn/llama_layouts.h"
#include "tessera/ops/convert.h"

namespace tessera::nn {
namespace {

std::optional<ops::RopeScaling> rope_scaling(const LlamaConfig& config) {
  if (!config.rope_scaling) return std::nullopt;
  const auto& scaling = *config.rope_scaling;
  return ops::RopeScaling{.factor = scaling.factor,
                          .low_freq_factor = scaling.low_freq_factor,
                          .high_freq_factor = scaling.high_freq_factor,
                          .original_max_position = scaling.original_max_position_embeddings};
}

}  // namespace

Llama::Llama(const LlamaConfig& config, Context& context, std::int64_t max_positions)
    : config_(config), context_(context) {
  const int rank = context.tp_rank(), size = context.tp_size();
  const std::vector<std::int64_t> table{config.vocab_size, config.hidden_size};
  const std::int64_t vocab_begin = layout::even_part(config.vocab_size, rank, size).begin;

  embedding_ = {add("embedding.weight", table, vocabulary_layout(config, size), Cut::rows), vocab_begin};
  blocks_.reserve(static_cast<std::size_t>(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) blocks_.push_back(make_block(layer));
  norm_ = add_norm("norm.weight");
  output_ = {config.tie_word_embeddings ? embedding_.weight
                                        : add("output.weight", table, vocabulary_layout(config, size), Cut::rows),
             vocab_begin};

  const at::ScalarType type = ops::to_scalar_type(context.runtime.types().model);
  rope_ = ops::make_rope_table(max_positions, config.head_dim, config.rope_theta, rope_scaling(config), type);
  anchor_ = at::zeros({}).requires_grad_();
}

Block Llama::make_block(int index) {
  const int rank = context_.tp_rank(), size = context_.tp_size();
  const std::string prefix = fmt::format("layers.{}.", index);
  const std::int64_t hidden = config_.hidden_size, heads = config_.num_heads * config_.head_dim;
  const std::int64_t kv = config_.num_kv_heads * config_.head_dim, ffn = config_.intermediate_size;
  const HeadPart part = head_part(config_, rank, size);

  Block block;
  block.qkv.norm = add_norm(prefix + "attention_norm.weight");
  block.qkv.weight =
      add(prefix + "attention.qkv.weight", {heads + 2 * kv, hidden}, qkv_layout(config_, size), Cut::rows);
  block.attention_output.weight =
      add(prefix + "attention.output.weight", {hidden, heads}, attention_output_layout(config_, size), Cut::cols);
  block.gate_up.norm = add_norm(prefix + "mlp_norm.weight");
  block.gate_up.weight =
      add(prefix + "mlp.gate_up.weight", {2 * ffn, hidden}, gate_up_layout(config_, size), Cut::rows);
  block.down.weight = add(prefix + "mlp.down.weight", {hidden, ffn}, down_layout(config_, size), Cut::cols);
  block.down.activation = Activation::swiglu;

  block.heads = {.q_heads = part.q.size(), .kv_heads = part.kv.size(), .head_dim = config_.head_dim, .kv_of_q = {}};
  const std::int64_t group = config_.num_heads / config_.num_kv_heads;
  for (std::int64_t head = part.q.begin; head < part.q.end; ++head)
    block.heads.kv_of_q.push_back(static_cast<int>(head / group - part.kv.begin));
  return block;
}

// The weight's local extent along the cut follows from what the rank holds; the other one is the logical tensor's.
Weight Llama::add(const std::string& name, std::vector<std::int64_t> dims, const layout::Layout& compute, Cut cut) {
  const std::int64_t local = compute.ranks[static_cast<std::size_t>(context_.tp_rank())].size;
  const layout::Shape shape = compute.shape;
  const shard::ParameterId id = context_.runtime.add(
      {.name = name, .dims = std::move(dims), .compute = compute, .initial_deviation = config_.initializer_range});
  if (cut == Cut::cols) return {.id = id, .rows = shape.rows, .cols = local / shape.rows};
  return {.id = id, .rows = local / shape.cols, .cols = shape.cols};
}

Norm Llama::add_norm(const std::string& name) {
  const bool parts = context_.sequence_parallel && context_.tp_size() > 1;
  const shard::ParameterId id = context_.runtime.add({.name = name,
                                                      .dims = {config_.hidden_size},
                                                      .compute = norm_layout(config_, context_.tp_size()),
                                                      .sharded = false,
                                                      .partial_gradient = parts,
                                                      .decay = false,
                                                      .initial_deviation = 0,
                                                      .initial_value = 1});
  return {.weight = {.id = id, .cols = config_.hidden_size, .is_vector = true}, .eps = config_.rms_norm_eps};
}

Loss Llama::forward(const Batch& batch, double scale) {
  Stream stream{embed(context_, embedding_, batch.tokens, anchor_), {}};
  for (const Block& block : blocks_) stream = block_forward(context_, block, stream, batch.layout, rope_);
  const at::Tensor hidden = rms_norm(context_, norm_, stream.h, stream.residual);
  return output_loss(context_, output_, hidden, batch.targets, scale);
}

}  // namespace tessera::nn
