#include "tessera/models/llama_parameters.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using shard::ParameterSpec;

ParameterSpec matrix(const LlamaConfig& config, std::string name, layout::Layout compute) {
  return {.name = std::move(name),
          .dims = {compute.shape.rows, compute.shape.cols},
          .compute = std::move(compute),
          .initial_deviation = config.initializer_range};
}

// Of a linear layer: used in one place.
ParameterSpec linear(const LlamaConfig& config, std::string name, layout::Layout compute) {
  ParameterSpec spec = matrix(config, std::move(name), std::move(compute));
  spec.produced_once = true;
  return spec;
}

ParameterSpec norm(const LlamaConfig& config, std::string name, int tp_size, bool partial) {
  return {.name = std::move(name),
          .dims = {config.hidden_size},
          .compute = norm_layout(config, tp_size),
          .sharded = false,
          .partial_gradient = partial,
          .decay = false,
          .initial_deviation = 0,
          .initial_value = 1};
}

}  // namespace

LlamaIds llama_ids(const LlamaConfig& config) {
  schedule::ParameterId next = 0;
  LlamaIds ids{.embedding = next++, .blocks = {}, .norm = 0, .output = 0};
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer, next += 6)
    ids.blocks.push_back({.attention_norm = next,
                          .qkv = next + 1,
                          .attention_output = next + 2,
                          .mlp_norm = next + 3,
                          .gate_up = next + 4,
                          .down = next + 5});
  ids.norm = next++;
  ids.output = config.tie_word_embeddings ? ids.embedding : next;
  return ids;
}

namespace {

std::vector<ParameterSpec> parameters_of(const LlamaConfig& config, const LlamaParts& parts, bool partial_norms,
                                         std::int64_t layers) {
  check_parts(config, parts);
  const int tp_size = parts.tp_size();
  std::vector<ParameterSpec> specs;
  specs.push_back(matrix(config, "embedding.weight", vocabulary_layout(config, parts)));
  specs.back().looked_up = true;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    specs.push_back(norm(config, prefix + "attention_norm.weight", tp_size, partial_norms));
    specs.push_back(linear(config, prefix + "attention.qkv.weight", qkv_layout(config, parts)));
    specs.push_back(linear(config, prefix + "attention.output.weight", attention_output_layout(config, parts)));
    specs.push_back(norm(config, prefix + "mlp_norm.weight", tp_size, partial_norms));
    specs.push_back(linear(config, prefix + "mlp.gate_up.weight", gate_up_layout(config, parts)));
    specs.push_back(linear(config, prefix + "mlp.down.weight", down_layout(config, parts)));
  }
  specs.push_back(norm(config, "norm.weight", tp_size, partial_norms));
  if (!config.tie_word_embeddings) specs.push_back(linear(config, "output.weight", vocabulary_layout(config, parts)));
  return specs;
}

}  // namespace

std::vector<ParameterSpec> llama_parameters(const LlamaConfig& config, const LlamaParts& parts, bool partial_norms) {
  return parameters_of(config, parts, partial_norms, config.num_layers);
}

std::vector<ParameterSpec> llama_parameters(const LlamaConfig& config, int tp_size, bool partial_norms) {
  return llama_parameters(config, even_parts(config, tp_size), partial_norms);
}

std::vector<ParameterSpec> llama_parameters(const LlamaConfig& config, int tp_size, bool partial_norms,
                                            std::int64_t layers) {
  return parameters_of(config, even_parts(config, tp_size), partial_norms, layers);
}

void set_embedding_reads(std::vector<ParameterSpec>& specs, const LlamaConfig& config, const shard::RowReads& reads) {
  if (config.tie_word_embeddings) return;
  ParameterSpec& table = specs[static_cast<std::size_t>(llama_ids(config).embedding)];
  table.reads = reads;
  const auto in_ranges = [](const layout::LocalLayout& local) { return local.pieces.size() > 1; };
  if (std::ranges::none_of(table.compute.ranks, in_ranges)) return;
  TESSERA_CHECK(reads.lookup != shard::Lookup::rows,
                "parameter '{}': rows travel by index only where each tp rank holds one range of the vocabulary, and a "
                "tp rank holds several; expected the table to be gathered",
                table.name);
  table.reads.lookup = shard::Lookup::gather;
}

}  // namespace tessera::models
