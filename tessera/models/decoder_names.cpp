#include "tessera/models/decoder_names.h"

#include <fmt/format.h>

#include <utility>

namespace tessera::models {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kOutput = "lm_head.weight";

// Part of a logical matrix, stacked by rows, or of a logical vector.
struct Part {
  std::string hf_name;
  std::int64_t rows;
};

void add_matrix(std::vector<HfTensor>& list, const std::string& name, std::int64_t cols, std::vector<Part> parts) {
  std::int64_t row = 0;
  for (Part& part : parts) {
    const bool is_projection = part.hf_name.ends_with("_proj.weight");
    list.push_back({std::move(part.hf_name), {part.rows, cols}, name, {row, part.rows, 0, cols}, is_projection});
    row += part.rows;
  }
}

void add_vector(std::vector<HfTensor>& list, const std::string& name, std::vector<Part> parts) {
  std::int64_t first = 0;
  for (Part& part : parts) {
    list.push_back({std::move(part.hf_name), {part.rows}, name, {0, 1, first, part.rows}});
    first += part.rows;
  }
}

void add_layer(std::vector<HfTensor>& list, const DecoderConfig& c, std::int64_t layer) {
  const std::string ours = fmt::format("layers.{}.", layer), hf = "model." + ours;
  const std::int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  add_vector(list, ours + "attention_norm.weight", {{hf + "input_layernorm.weight", c.hidden_size}});
  add_matrix(list, ours + "attention.qkv.weight", c.hidden_size,
             {{hf + "self_attn.q_proj.weight", q},
              {hf + "self_attn.k_proj.weight", kv},
              {hf + "self_attn.v_proj.weight", kv}});
  if (c.has_qkv_bias)
    add_vector(
        list, ours + "attention.qkv.bias",
        {{hf + "self_attn.q_proj.bias", q}, {hf + "self_attn.k_proj.bias", kv}, {hf + "self_attn.v_proj.bias", kv}});
  if (c.has_head_norms) {
    add_vector(list, ours + "attention.q_norm.weight", {{hf + "self_attn.q_norm.weight", c.head_dim}});
    add_vector(list, ours + "attention.k_norm.weight", {{hf + "self_attn.k_norm.weight", c.head_dim}});
  }
  add_matrix(list, ours + "attention.output.weight", q, {{hf + "self_attn.o_proj.weight", c.hidden_size}});
  add_vector(list, ours + "mlp_norm.weight", {{hf + "post_attention_layernorm.weight", c.hidden_size}});
  add_matrix(list, ours + "mlp.gate_up.weight", c.hidden_size,
             {{hf + "mlp.gate_proj.weight", c.intermediate_size}, {hf + "mlp.up_proj.weight", c.intermediate_size}});
  add_matrix(list, ours + "mlp.down.weight", c.intermediate_size, {{hf + "mlp.down_proj.weight", c.hidden_size}});
}

}  // namespace

std::vector<HfTensor> decoder_tensors(const DecoderConfig& config) {
  std::vector<HfTensor> list;
  add_matrix(list, "embedding.weight", config.hidden_size, {{kEmbedding, config.vocab_size}});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) add_layer(list, config, layer);
  add_vector(list, "norm.weight", {{"model.norm.weight", config.hidden_size}});
  if (!config.tie_word_embeddings)
    add_matrix(list, "output.weight", config.hidden_size, {{kOutput, config.vocab_size}});
  return list;
}

std::vector<HfAlias> decoder_aliases(const DecoderConfig& config) {
  if (!config.tie_word_embeddings) return {};
  return {{.hf_name = kOutput, .of = kEmbedding}};
}

}  // namespace tessera::models
