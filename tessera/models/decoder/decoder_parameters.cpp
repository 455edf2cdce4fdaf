#include "tessera/models/decoder/decoder_parameters.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/nn/mesh_degrees.h"

namespace tessera::models {
namespace {

using shard::ParameterSpec;

ParameterSpec matrix(const DecoderConfig& config, std::string name, layout::Layout compute) {
  const auto [rows, cols] = compute.shape;
  return {.name = std::move(name),
          .dims = {rows, cols},
          .compute = std::move(compute),
          .initial_deviation = config.initializer_range};
}

// The weight of a linear layer, which only one layer uses.
ParameterSpec linear(const DecoderConfig& config, std::string name, layout::Layout compute) {
  ParameterSpec spec = matrix(config, std::move(name), std::move(compute));
  spec.produced_once = true;
  return spec;
}

// A linear layer between the embedding and the output layer. `blocks`: the matrices that the weight stacks.
ParameterSpec hidden(const DecoderConfig& config, std::string name, layout::Layout compute,
                     std::vector<layout::Block> blocks = {}) {
  ParameterSpec spec = linear(config, std::move(name), std::move(compute));
  spec.blocks = std::move(blocks);
  spec.is_hidden_matrix = true;
  return spec;
}

std::vector<layout::Block> qkv_blocks(const DecoderConfig& config) {
  const std::int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
  return {{.name = "q", .rows = q}, {.name = "k", .rows = kv}, {.name = "v", .rows = kv}};
}

std::vector<layout::Block> gate_up_blocks(std::int64_t width) {
  return {{.name = "gate", .rows = width}, {.name = "up", .rows = width}};
}

// The bias of a linear layer: a vector, sharded over tp as the rows of the layer's weight. The vector is one row, which
// one rank stores.
ParameterSpec bias(std::string name, layout::Layout compute) {
  const std::int64_t size = compute.shape.cols;
  return {.name = std::move(name),
          .dims = {size},
          .compute = std::move(compute),
          .produced_once = true,
          .decay = false,
          .initial_deviation = 0};
}

// partial: each tp rank computes a part of the gradient.
ParameterSpec norm(std::string name, std::int64_t size, int tp_size, bool partial) {
  return {.name = std::move(name),
          .dims = {size},
          .compute = layout::replicated({1, size}, tp_size),
          .sharded = false,
          .partial_gradient = partial,
          .decay = false,
          .initial_deviation = 0,
          .initial_value = 1};
}

// The router's weight is on every tp rank. Each rank computes the gradient for its own tokens.
ParameterSpec router(const DecoderConfig& config, const std::string& name, int tp_size, bool partial) {
  ParameterSpec spec = linear(config, name, layout::replicated({config.experts->count, config.hidden_size}, tp_size));
  spec.partial_gradient = partial;
  spec.is_wide = true;
  spec.takes_formats = false;
  return spec;
}

// The bias has one number for each expert. The bias has no gradient; RouterBiasUpdate changes it
// (train/update/router_bias.h).
ParameterSpec router_bias(const DecoderConfig& config, const std::string& name, int tp_size) {
  ParameterSpec spec = norm(name, config.experts->count, tp_size, /*partial=*/false);
  spec.trainable = false;
  spec.initial_value = 0;
  spec.is_wide = true;
  spec.takes_formats = false;
  return spec;
}

// A matrix for each expert. `dims` is the logical shape; its rows are stacked in `compute`.
ParameterSpec of_experts(const DecoderConfig& config, std::string name, std::vector<std::int64_t> dims,
                         layout::Layout compute, std::vector<layout::Block> blocks = {}) {
  ParameterSpec spec = hidden(config, std::move(name), std::move(compute), std::move(blocks));
  spec.dims = std::move(dims);
  spec.domain = nn::kExpertDomain;
  return spec;
}

void add_experts(std::vector<ParameterSpec>& specs, const DecoderConfig& config, const ParameterOptions& options,
                 const std::string& prefix) {
  const ExpertsConfig& experts = *config.experts;
  specs.push_back(router(config, prefix + "router.weight", options.tp_size, options.partial_norms));
  if (experts.has_router_bias) specs.push_back(router_bias(config, prefix + "router.bias", options.tp_size));
  specs.push_back(of_experts(config, prefix + "experts.gate_up.weight",
                             {experts.count, 2 * experts.width, config.hidden_size},
                             experts_gate_up_layout(config, options.etp, options.ep), gate_up_blocks(experts.width)));
  specs.push_back(of_experts(config, prefix + "experts.down.weight", {experts.count, config.hidden_size, experts.width},
                             experts_down_layout(config, options.etp, options.ep)));
  if (experts.shared_width == 0) return;
  specs.push_back(hidden(config, prefix + "shared_expert.gate_up.weight",
                         shared_gate_up_layout(config, options.tp_size), gate_up_blocks(experts.shared_width)));
  specs.push_back(hidden(config, prefix + "shared_expert.down.weight", shared_down_layout(config, options.tp_size)));
}

void add_block(std::vector<ParameterSpec>& specs, const DecoderConfig& config, const TpParts& parts,
               const ParameterOptions& options, std::int64_t layer) {
  const bool partial_norms = options.partial_norms;
  const std::string prefix = fmt::format("layers.{}.", layer);
  const int tp_size = parts.tp_size();
  specs.push_back(norm(prefix + "attention_norm.weight", config.hidden_size, tp_size, partial_norms));
  specs.push_back(hidden(config, prefix + "attention.qkv.weight", qkv_layout(config, parts), qkv_blocks(config)));
  if (config.has_qkv_bias) specs.push_back(bias(prefix + "attention.qkv.bias", qkv_bias_layout(config, parts)));
  if (config.has_head_norms)  // each tp rank normalizes its own heads
    for (const char* name : {"attention.q_norm.weight", "attention.k_norm.weight"})
      specs.push_back(norm(prefix + name, config.head_dim, tp_size, /*partial=*/true));
  specs.push_back(hidden(config, prefix + "attention.output.weight", attention_output_layout(config, parts)));
  specs.push_back(norm(prefix + "mlp_norm.weight", config.hidden_size, tp_size, partial_norms));
  if (config.is_sparse(layer)) return add_experts(specs, config, options, prefix);
  specs.push_back(hidden(config, prefix + "mlp.gate_up.weight", gate_up_layout(config, parts),
                         gate_up_blocks(config.intermediate_size)));
  specs.push_back(hidden(config, prefix + "mlp.down.weight", down_layout(config, parts)));
}

void set_reads(ParameterSpec& table, const shard::RowReads& reads) {
  table.reads = reads;
  const auto in_ranges = [](const layout::LocalLayout& local) { return local.pieces.size() > 1; };
  if (std::ranges::none_of(table.compute.ranks, in_ranges)) return;
  TESSERA_CHECK(reads.lookup != shard::Lookup::rows,
                "parameter '{}': rows travel by index only where each tp rank holds one range of the vocabulary, but a "
                "tp rank holds several; use a gathered table",
                table.name);
  table.reads.lookup = shard::Lookup::gather;
}

}  // namespace

DecoderIds decoder_ids(const DecoderConfig& config) {
  schedule::ParameterId next = 0;
  DecoderIds ids{.embedding = next++, .blocks = {}, .norm = 0, .output = 0};
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    DecoderBlockIds block{};
    block.attention_norm = next++;
    block.qkv = next++;
    if (config.has_qkv_bias) block.qkv_bias = next++;
    if (config.has_head_norms) block.q_norm = next++;
    if (config.has_head_norms) block.k_norm = next++;
    block.attention_output = next++;
    block.mlp_norm = next++;
    if (config.is_sparse(layer)) {
      block.router = next++;
      if (config.experts->has_router_bias) block.router_bias = next++;
      block.experts_gate_up = next++;
      block.experts_down = next++;
      if (config.experts->shared_width > 0) block.shared_gate_up = next++;
      if (config.experts->shared_width > 0) block.shared_down = next++;
    } else {
      block.gate_up = next++;
      block.down = next++;
    }
    ids.blocks.push_back(block);
  }
  ids.norm = next++;
  ids.output = config.tie_word_embeddings ? ids.embedding : next;
  return ids;
}

namespace {

std::vector<ParameterSpec> parameters_of_group(const DecoderConfig& config, const ParameterOptions& options,
                                               const TpParts& parts) {
  check_parts(config, parts);
  std::vector<ParameterSpec> specs;
  specs.push_back(matrix(config, "embedding.weight", vocabulary_layout(config, parts)));
  specs.back().looked_up = true;
  if (!config.tie_word_embeddings) set_reads(specs.back(), options.embedding);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) add_block(specs, config, parts, options, layer);
  specs.push_back(norm("norm.weight", config.hidden_size, parts.tp_size(), options.partial_norms));
  if (!config.tie_word_embeddings) specs.push_back(linear(config, "output.weight", vocabulary_layout(config, parts)));
  return specs;
}

}  // namespace

std::vector<ParameterSpec> decoder_parameters(const DecoderConfig& config, const ParameterOptions& options) {
  const TpParts parts = options.parts ? *options.parts : even_parts(config, options.tp_size);
  TESSERA_CHECK(parts.tp_size() == options.tp_size, "the model's parts are for {} tp ranks, expected {}",
                parts.tp_size(), options.tp_size);
  std::vector<ParameterSpec> specs = parameters_of_group(config, options, parts);
  if (options.shapes.empty()) return specs;
  if (config.experts) throw InputError("a model with experts needs a rank at every place of each tp group");
  const int places = static_cast<int>(options.shapes.front().size());
  for (const shard::Slots& slots : options.shapes) {
    std::vector<ParameterSpec> of_group = parameters_of_group(config, options, parts_of(config, places, slots));
    for (std::size_t id = 0; id < specs.size(); ++id)
      specs[id].compute_by_slots.emplace(slots, std::move(of_group[id].compute));
  }
  return specs;
}

}  // namespace tessera::models
