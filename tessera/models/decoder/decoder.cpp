#include "tessera/models/decoder/decoder.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/layers/linear_products.h"
#include "tessera/nn/layers/output_logits.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/nn/nvfp4_recipe.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/grouped/companions.h"

namespace tessera::models {
namespace {

std::optional<ops::RopeScaling> rope_scaling(const DecoderConfig& config) {
  if (!config.rope_scaling) return std::nullopt;
  const auto& scaling = *config.rope_scaling;
  return ops::RopeScaling{.factor = scaling.factor,
                          .low_freq_factor = scaling.low_freq_factor,
                          .high_freq_factor = scaling.high_freq_factor,
                          .original_max_position = scaling.original_max_position_embeddings};
}

// A frozen parameter has neither a gradient nor a master, so all of its types are the type of the weight.
void freeze(shard::ParameterSpec& spec, const shard::ParameterTypes& run) {
  const quant::DType type = types_of(spec, run).model;
  spec.trainable = false;
  if (!spec.is_wide) spec.types = {.model = type, .accumulator = type, .wire = type};
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config, const nn::Context& context, const ModelOptions& options)
    : config_(config), router_loss_(options.router_loss), expert_capacity_(options.expert_capacity), context_(context) {
  if (config.experts) {
    router_loss_.aux_coefficient = config.experts->aux_coefficient;
    router_loss_.experts_per_token = config.experts->per_token;
  }
  const shard::ComputeGroup& group = context.program.compute_group(0);
  TESSERA_CHECK(group.shapes.empty() || !options.parts, "the parts of tp groups of different sizes cannot be given");
  const int size = group.size;
  const TpParts parts = options.parts ? *options.parts : parts_of(config, group.nominal_size, group.slots);
  // decoder_parameters refuses experts in a mesh with dead places, which has no place of experts.
  const bool has_place = config.experts && group.shapes.empty();
  const nn::ExpertPlace experts = has_place ? nn::expert_place(context.program) : nn::ExpertPlace{};
  for (shard::ParameterSpec& spec :
       decoder_parameters(config, {.tp_size = size,
                                  .etp = experts.etp.size,
                                  .ep = experts.ep.size,
                                  .partial_norms = context.sequence_parallel && context.has_tp(),
                                  .embedding = options.embedding,
                                  .parts = parts,
                                  .shapes = group.shapes})) {
    if (options.is_frozen) freeze(spec, context.program.parameters().types());
    context.program.parameters().add(std::move(spec));
  }
  const DecoderIds ids = decoder_ids(config);
  const HeadPart heads = head_part(config, parts.heads[static_cast<std::size_t>(context.tp_rank())]);

  embedding_ = {weight(ids.embedding, Cut::rows), ids_of(ids.embedding)};
  blocks_.reserve(ids.blocks.size());
  for (const DecoderBlockIds& block : ids.blocks) {
    blocks_.push_back(make_block(block, heads));
    blocks_.back().recompute = context.recompute.of(blocks_.size() - 1);
  }
  check_products_of_experts();
  norm_ = stream_norm(ids.norm, 2 * blocks_.size());
  output_ = {weight(ids.output, Cut::rows), ids_of(ids.output)};

  const at::ScalarType type = ops::to_scalar_type(context.program.parameters().types().model);
  rope_ = ops::make_rope_table(options.max_positions, config.head_dim, config.rope_theta, rope_scaling(config), type,
                               ops::to_device(context.program.device()));
  anchor_ = at::zeros({}).requires_grad_();
  context.program.parameters().add_backward_weights();
}

// Checks each kind of product once. All sparse layers have the same shapes, but may have different number formats.
void Decoder::check_products_of_experts() const {
  const at::Device device = ops::to_device(context_.program.device());
  if (!device.is_cuda() || context_.program.parameters().types().model != quant::DType::bf16) return;
  std::set<ops::ExpertProducts> kinds;
  for (const nn::Block& block : blocks_) {
    if (!block.experts) continue;
    for (const nn::Weight* weight : {&block.experts->gate_up, &block.experts->down})
      if (weight->rows > 0)
        kinds.insert({.out = weight->rows / block.experts->local.count,
                      .in = weight->cols,
                      .format = weight->product,
                      .recipe = context_.products.recipe,
                      .kernels = context_.program.parameters().spec(weight->id).kernels,
                      .transform = transforms_wgrad(context_, *weight),
                      .rounds_randomly = rounds_randomly(context_, *weight)});
  }
  for (const ops::ExpertProducts& kind : kinds) ops::check_companions(kind, device);
}

nn::Block Decoder::make_block(const DecoderBlockIds& ids, const HeadPart& heads) {
  nn::Block block;
  const nn::Norm attention_norm = stream_norm(ids.attention_norm, 2 * blocks_.size());
  block.qkv = {.weight = weight(ids.qkv, Cut::rows), .norm = attention_norm, .bias = {}};
  if (config_.has_qkv_bias) block.qkv.bias = vector(ids.qkv_bias);
  if (config_.has_head_norms) block.head_norms = nn::HeadNorms{.q = norm(ids.q_norm), .k = norm(ids.k_norm)};
  block.attention_output = {.weight = weight(ids.attention_output, Cut::cols)};
  if (ids.router != schedule::kNoParameter) {
    block.experts = make_experts(ids);
  } else {
    const nn::Norm mlp_norm = stream_norm(ids.mlp_norm, 2 * blocks_.size() + 1);
    block.feed_forward.gate_up = {.weight = weight(ids.gate_up, Cut::rows), .norm = mlp_norm, .bias = {}};
    block.feed_forward.down = {.weight = weight(ids.down, Cut::cols)};
  }

  block.heads = {
      .q_heads = heads.q_heads(), .kv_heads = heads.kv_heads, .head_dim = config_.head_dim, .kv_of_q = heads.kv_of_q};
  return block;
}

ops::IdRanges Decoder::ids_of(schedule::ParameterId id) const {
  ops::IdRanges ids;
  for (const layout::Piece& piece : context_.program.parameters().local_compute(id).pieces)
    ids.add(piece.box.row, piece.box.rows);
  return ids;
}

// Along the sharded dimension, the local extent of the weight follows from this rank's shard. The other local extent
// equals the extent of the logical tensor.
nn::Weight Decoder::weight(schedule::ParameterId id, Cut cut) const {
  const shard::ParameterSpec& spec = context_.program.parameters().spec(id);
  const std::int64_t local = context_.program.parameters().local_compute(id).size;
  const layout::Shape shape = spec.compute.shape;
  nn::Weight weight{.id = id, .product = spec.product};
  weight.rows = cut == Cut::cols ? shape.rows : local / shape.cols;
  weight.cols = cut == Cut::cols ? local / shape.rows : shape.cols;
  add_scales(context_, weight);
  return weight;
}

nn::Weight Decoder::vector(schedule::ParameterId id) const {
  return {.id = id, .cols = context_.program.parameters().local_compute(id).size, .is_vector = true};
}

nn::Norm Decoder::norm(schedule::ParameterId id) const {
  return {.weight = vector(id), .eps = config_.rms_norm_eps};
}

nn::Norm Decoder::stream_norm(schedule::ParameterId id, std::size_t site) const {
  nn::Norm result = norm(id);
  result.dropout = nn::input_dropout(context_.dropout, static_cast<std::uint32_t>(site));
  return result;
}

nn::Experts Decoder::make_experts(const DecoderBlockIds& ids) const {
  const ExpertsConfig& experts = *config_.experts;
  const shard::AxisPlace place = nn::expert_place(context_.program).ep;
  const layout::Range own = layout::even_part(experts.count, place.index, place.size);
  nn::Experts layers{.norm = stream_norm(ids.mlp_norm, 2 * blocks_.size() + 1),
                     .router = weight(ids.router, Cut::rows),
                     .gate_up = weight(ids.experts_gate_up, Cut::rows),
                     .down = weight(ids.experts_down, Cut::cols),
                     .options = {.k = experts.per_token,
                                 .normalizes = experts.normalizes_weights,
                                 .score = experts.score,
                                 .groups = experts.groups,
                                 .chosen_groups = experts.chosen_groups,
                                 .scale = experts.weight_scale},
                     .local = {.first = own.begin, .count = own.size(), .all = experts.count},
                     .capacity = expert_capacity_};
  if (experts.has_router_bias) layers.router_bias = vector(ids.router_bias);
  if (experts.shared_width > 0)
    layers.shared = nn::FeedForward{
        .gate_up = {.weight = weight(ids.shared_gate_up, Cut::rows), .norm = std::nullopt, .bias = std::nullopt},
        .down = {.weight = weight(ids.shared_down, Cut::cols)}};
  // The columns of the local experts' matrices.
  layers.down.rows = own.size() * config_.hidden_size;
  layers.down.cols =
      own.size() == 0 ? 0 : context_.program.parameters().local_compute(ids.experts_down).size / layers.down.rows;
  return layers;
}

nn::PassState Decoder::pass_of(const Batch& batch, nn::PassState pass) const {
  pass.random.first_token = batch.first_token;
  pass.random.first_own_token =
      batch.first_token + context_.own_tokens(batch.layout.batch * batch.layout.seq_len).begin;
  return pass;
}

Flow Decoder::begin(const Batch& batch, const nn::PassState& pass) {
  return {.stream = {embed(pass, embedding_, batch.tokens, batch.early_tokens, anchor_), {}}, .terms = {}};
}

Flow Decoder::run(Flow flow, layout::Range blocks, const Batch& batch, const nn::PassState& pass,
                  nn::KeyValueCache* cache) {
  TESSERA_CHECK(blocks.begin >= 0 && blocks.begin <= blocks.end && blocks.end <= this->blocks(),
                "blocks {} to {}, expected blocks below {}", blocks.begin, blocks.end, this->blocks());
  const nn::PassState own = pass_of(batch, pass);
  nn::TokenLayout layout = batch.layout;
  if (config_.experts) layout.counted = batch.targets.ge(0);
  for (auto layer = static_cast<std::size_t>(blocks.begin); layer < static_cast<std::size_t>(blocks.end); ++layer) {
    const nn::Block& block = blocks_[layer];
    if (cache != nullptr) {
      const nn::CachePlace place{.layer = cache->layers.at(layer), .first = cache->tokens};
      flow.stream = cached_block_forward(own, block, std::move(flow.stream), layout, rope_, place);
      continue;
    }
    nn::BlockOutput out = block_forward(own, block, std::move(flow.stream), layout, rope_);
    flow.stream = std::move(out.stream);
    if (out.terms.defined()) flow.terms.push_back(std::move(out.terms));
  }
  return flow;
}

at::Tensor Decoder::hidden(Flow flow, const Batch& batch, const nn::PassState& pass) {
  return rms_norm(pass_of(batch, pass), norm_, flow.stream.h, flow.stream.residual);
}

nn::Loss Decoder::loss(Flow flow, const Batch& batch, const nn::PassState& pass, double scale) {
  const std::vector<nn::RouterTerms> terms = std::exchange(flow.terms, {});
  const at::Tensor last = hidden(std::move(flow), batch, pass);  // from here on, the stream's memory may be reused
  nn::Loss loss = output_loss(pass_of(batch, pass), output_, last, batch.targets, scale);
  if (terms.empty()) return loss;
  const nn::RouterLoss router = router_loss(terms, router_loss_, batch.targets.ge(0), scale);
  loss.objective = at::add(loss.objective, router.objective);
  loss.router = router.values;
  return loss;
}

at::Tensor Decoder::logits(Flow flow, const Batch& batch, const nn::PassState& pass) {
  return last_logits(pass, output_, hidden(std::move(flow), batch, pass), batch.layout.seq_len, config_.vocab_size);
}

RouterBiases Decoder::router_biases() const {
  RouterBiases biases{.ids = {}, .experts = config_.experts ? config_.experts->count : 0};
  for (const nn::Block& block : blocks_)
    if (block.experts && block.experts->router_bias) biases.ids.push_back(block.experts->router_bias->id);
  return biases;
}

nn::KeyValueCache Decoder::make_cache(std::int64_t capacity) {
  nn::KeyValueCache cache{.layers = {}, .capacity = capacity};
  const at::TensorOptions options = at::TensorOptions(ops::to_device(context_.program.device()))
                                        .dtype(ops::to_scalar_type(context_.program.parameters().types().model));
  for (const nn::Block& block : blocks_) {
    const std::int64_t shape[] = {capacity, block.heads.kv_heads, block.heads.head_dim};
    cache.layers.push_back({.keys = at::empty(shape, options), .values = at::empty(shape, options)});
  }
  return cache;
}

}  // namespace tessera::models
