#include "tessera/models/llama.h"

#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/nn/linear_products.h"
#include "tessera/ops/aten_types.h"

namespace tessera::models {
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

Llama::Llama(const LlamaConfig& config, nn::Context& context, std::int64_t max_positions,
             const shard::RowReads& embedding, const std::optional<LlamaParts>& parts)
    : config_(config), parts_(parts ? *parts : even_parts(config, context.tp_size())), context_(context) {
  const int size = context.tp_size();
  TESSERA_CHECK(parts_.tp_size() == size, "the model's parts are those of {} tp ranks, expected {}", parts_.tp_size(),
                size);
  std::vector<shard::ParameterSpec> specs = llama_parameters(config, parts_, context.sequence_parallel && size > 1);
  set_embedding_reads(specs, config, embedding);
  for (shard::ParameterSpec& spec : specs) context.program.add(std::move(spec));
  const LlamaIds ids = llama_ids(config);

  embedding_ = {weight(ids.embedding, Cut::rows), ids_of(ids.embedding)};
  blocks_.reserve(ids.blocks.size());
  for (const LlamaBlockIds& block : ids.blocks) {
    blocks_.push_back(make_block(block));
    blocks_.back().recompute = context.recompute.of(blocks_.size() - 1);
  }
  norm_ = norm(ids.norm);
  output_ = {weight(ids.output, Cut::rows), ids_of(ids.output)};

  const at::ScalarType type = ops::to_scalar_type(context.program.types().model);
  rope_ = ops::make_rope_table(max_positions, config.head_dim, config.rope_theta, rope_scaling(config), type);
  const at::Device device = ops::to_device(context.program.device());
  rope_ = {rope_.cosine.to(device), rope_.sine.to(device)};
  anchor_ = at::zeros({}).requires_grad_();
  context.program.add_backward_copies();
}

nn::Block Llama::make_block(const LlamaBlockIds& ids) {
  const HeadPart part = head_part(config_, parts_.heads[static_cast<std::size_t>(context_.tp_rank())]);
  nn::Block block;
  block.qkv = {.weight = weight(ids.qkv, Cut::rows), .norm = norm(ids.attention_norm)};
  block.attention_output = {.weight = weight(ids.attention_output, Cut::cols)};
  block.feed_forward.gate_up = {.weight = weight(ids.gate_up, Cut::rows), .norm = norm(ids.mlp_norm)};
  block.feed_forward.down = {.weight = weight(ids.down, Cut::cols)};

  block.heads = {
      .q_heads = part.q_heads(), .kv_heads = part.kv_heads, .head_dim = config_.head_dim, .kv_of_q = part.kv_of_q};
  return block;
}

ops::IdRanges Llama::ids_of(schedule::ParameterId id) const {
  ops::IdRanges ids;
  for (const layout::Piece& piece : context_.program.local_compute(id).pieces)
    ids.add(piece.box.row, piece.box.rows);
  return ids;
}

// The weight's local extent along the cut follows from what the rank holds; the other one is the logical tensor's.
nn::Weight Llama::weight(schedule::ParameterId id, Cut cut) const {
  const shard::ParameterSpec& spec = context_.program.spec(id);
  const std::int64_t size = context_.program.local_compute(id).size;
  const layout::Shape shape = spec.compute.shape;
  nn::Weight weight{.id = id, .product = spec.product};
  weight.rows = cut == Cut::cols ? shape.rows : size / shape.cols;
  weight.cols = cut == Cut::cols ? size / shape.rows : shape.cols;
  add_scales(context_, weight);
  return weight;
}

nn::Norm Llama::norm(schedule::ParameterId id) const {
  return {.weight = {.id = id, .cols = config_.hidden_size, .is_vector = true}, .eps = config_.rms_norm_eps};
}

nn::Loss Llama::forward(const Batch& batch, double scale) {
  nn::Stream stream{embed(context_, embedding_, batch.tokens, batch.early_tokens, anchor_), {}};
  for (const nn::Block& block : blocks_) stream = block_forward(context_, block, stream, batch.layout, rope_);
  const at::Tensor hidden = rms_norm(context_, norm_, stream.h, stream.residual);
  return output_loss(context_, output_, hidden, batch.targets, scale);
}

}  // namespace tessera::models
