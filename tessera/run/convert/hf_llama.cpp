#include "tessera/run/convert/hf_llama.h"

#include <fmt/format.h>

#include <utility>

namespace tessera::run {
namespace {

// Parts of one logical matrix with `cols` columns, stacked by rows.
struct Part {
  std::string hf_name;
  std::int64_t rows;
};

void add_matrix(std::vector<HfTensor>& list, const std::string& name, std::int64_t cols, std::vector<Part> parts) {
  std::int64_t row = 0;
  for (Part& part : parts) {
    list.push_back({std::move(part.hf_name), {part.rows, cols}, name, {row, part.rows, 0, cols}});
    row += part.rows;
  }
}

void add_vector(std::vector<HfTensor>& list, const std::string& name, std::int64_t size, std::string hf_name) {
  list.push_back({std::move(hf_name), {size}, name, {0, 1, 0, size}});
}

void add_layer(std::vector<HfTensor>& list, const models::LlamaConfig& c, std::int64_t layer) {
  const std::string ours = fmt::format("layers.{}.", layer), hf = "model." + ours;
  const std::int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  add_vector(list, ours + "attention_norm.weight", c.hidden_size, hf + "input_layernorm.weight");
  add_matrix(list, ours + "attention.qkv.weight", c.hidden_size,
             {{hf + "self_attn.q_proj.weight", q},
              {hf + "self_attn.k_proj.weight", kv},
              {hf + "self_attn.v_proj.weight", kv}});
  add_matrix(list, ours + "attention.output.weight", q, {{hf + "self_attn.o_proj.weight", c.hidden_size}});
  add_vector(list, ours + "mlp_norm.weight", c.hidden_size, hf + "post_attention_layernorm.weight");
  add_matrix(list, ours + "mlp.gate_up.weight", c.hidden_size,
             {{hf + "mlp.gate_proj.weight", c.intermediate_size}, {hf + "mlp.up_proj.weight", c.intermediate_size}});
  add_matrix(list, ours + "mlp.down.weight", c.intermediate_size, {{hf + "mlp.down_proj.weight", c.hidden_size}});
}

}  // namespace

std::vector<HfTensor> hf_tensors(const models::LlamaConfig& config) {
  std::vector<HfTensor> list;
  add_matrix(list, "embedding.weight", config.hidden_size, {{"model.embed_tokens.weight", config.vocab_size}});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) add_layer(list, config, layer);
  add_vector(list, "norm.weight", config.hidden_size, "model.norm.weight");
  if (!config.tie_word_embeddings)
    add_matrix(list, "output.weight", config.hidden_size, {{"lm_head.weight", config.vocab_size}});
  return list;
}

std::vector<LogicalTensor> logical_tensors(const models::LlamaConfig& config) {
  std::vector<LogicalTensor> list;
  for (const HfTensor& part : hf_tensors(config)) {
    if (list.empty() || list.back().name != part.name) {
      list.push_back({part.name, part.dims});
    } else {
      list.back().dims[0] += part.dims[0];
    }
  }
  return list;
}

}  // namespace tessera::run
