#include "tessera/models/decoder/decoder_names.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

namespace tessera::models {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kOutput = "lm_head.weight";
constexpr std::int64_t kTensorsOfExpert = 3;  // gate, up and down

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

void add_router(std::vector<HfTensor>& list, const DecoderConfig& c, const std::string& ours, const std::string& hf) {
  add_matrix(list, ours + "router.weight", c.hidden_size, {{hf + "gate.weight", c.experts->count}});
  list.back().is_wide = true;
  list.back().may_be_quantized = false;
  if (!c.experts->has_router_bias) return;
  list.back().keeps_fp32 = true;
  add_vector(list, ours + "router.bias", {{hf + "gate.e_score_correction_bias", c.experts->count}});
  list.back().is_wide = true;
  list.back().keeps_fp32 = true;
}

void add_shared_expert(std::vector<HfTensor>& list, const DecoderConfig& c, const std::string& ours,
                       const std::string& hf) {
  const std::int64_t width = c.experts->shared_width;
  if (width == 0) return;
  add_matrix(list, ours + "shared_expert.gate_up.weight", c.hidden_size,
             {{hf + "shared_experts.gate_proj.weight", width}, {hf + "shared_experts.up_proj.weight", width}});
  add_matrix(list, ours + "shared_expert.down.weight", width,
             {{hf + "shared_experts.down_proj.weight", c.hidden_size}});
}

// Returns the tensor for one matrix of one expert, which is a range of rows of our stacked tensor.
HfTensor of_expert(std::string hf_name, const std::string& name, const layout::Box& box,
                   const std::vector<std::int64_t>& whole) {
  return {.hf_name = std::move(hf_name),
          .dims = {box.rows, box.cols},
          .name = name,
          .box = box,
          .may_be_quantized = true,
          .whole = whole};
}

void add_separate_experts(std::vector<HfTensor>& list, const DecoderConfig& c, const ExpertNames& names,
                          const std::string& ours, const std::string& hf) {
  const auto [count, width, hidden] = std::tuple(c.experts->count, c.experts->width, c.hidden_size);
  const std::vector<std::int64_t> gate_up{count, 2 * width, hidden}, down{count, hidden, width};
  for (std::int64_t e = 0; e < count; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", hf, e);
    list.push_back(of_expert(expert + names.gate + ".weight", ours + "experts.gate_up.weight",
                             {2 * e * width, width, 0, hidden}, gate_up));
    list.push_back(of_expert(expert + names.up + ".weight", ours + "experts.gate_up.weight",
                             {(2 * e + 1) * width, width, 0, hidden}, gate_up));
  }
  for (std::int64_t e = 0; e < count; ++e)
    list.push_back(of_expert(fmt::format("{}experts.{}.{}.weight", hf, e, names.down), ours + "experts.down.weight",
                             {e * hidden, hidden, 0, width}, down));
}

void add_fused_experts(std::vector<HfTensor>& list, const DecoderConfig& c, const std::string& ours,
                       const std::string& hf) {
  const auto [count, width, hidden] = std::tuple(c.experts->count, c.experts->width, c.hidden_size);
  list.push_back({.hf_name = hf + "experts.gate_up_proj",
                  .dims = {count, 2 * width, hidden},
                  .name = ours + "experts.gate_up.weight",
                  .box = {0, count * 2 * width, 0, hidden}});
  list.push_back({.hf_name = hf + "experts.down_proj",
                  .dims = {count, hidden, width},
                  .name = ours + "experts.down.weight",
                  .box = {0, count * hidden, 0, width}});
}

void add_experts(std::vector<HfTensor>& list, const DecoderConfig& c, const ExpertNames& names, ExpertTensors experts,
                 std::int64_t layer) {
  const std::string ours = fmt::format("layers.{}.", layer);
  const std::string module = experts == ExpertTensors::fused ? "mlp" : names.module;
  const std::string hf = fmt::format("model.layers.{}.{}.", layer, module);
  add_router(list, c, ours, hf);
  if (experts == ExpertTensors::separate)
    add_separate_experts(list, c, names, ours, hf);
  else
    add_fused_experts(list, c, ours, hf);
  add_shared_expert(list, c, ours, hf);
}

void add_layer(std::vector<HfTensor>& list, const DecoderConfig& c, const ExpertNames& names, ExpertTensors experts,
               std::int64_t layer) {
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
  if (c.is_sparse(layer)) return add_experts(list, c, names, experts, layer);
  add_matrix(list, ours + "mlp.gate_up.weight", c.hidden_size,
             {{hf + "mlp.gate_proj.weight", c.intermediate_size}, {hf + "mlp.up_proj.weight", c.intermediate_size}});
  add_matrix(list, ours + "mlp.down.weight", c.intermediate_size, {{hf + "mlp.down_proj.weight", c.hidden_size}});
}

}  // namespace

std::vector<HfTensor> decoder_tensors(const DecoderConfig& config, const ExpertNames& names, ExpertTensors experts) {
  std::vector<HfTensor> list;
  add_matrix(list, "embedding.weight", config.hidden_size, {{kEmbedding, config.vocab_size}});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) add_layer(list, config, names, experts, layer);
  add_vector(list, "norm.weight", {{"model.norm.weight", config.hidden_size}});
  if (!config.tie_word_embeddings)
    add_matrix(list, "output.weight", config.hidden_size, {{kOutput, config.vocab_size}});
  return list;
}

std::int64_t num_layer_tensors(const DecoderConfig& config, const ExpertNames& names, ExpertTensors experts) {
  DecoderConfig few = config;
  if (few.experts) few.experts->count = 1;
  std::optional<std::int64_t> dense, sparse;  // tensors of a layer
  std::int64_t all = 0;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    std::optional<std::int64_t>& count = config.is_sparse(layer) ? sparse : dense;
    if (!count) {
      std::vector<HfTensor> list;
      add_layer(list, few, names, experts, layer);
      const bool repeats = config.is_sparse(layer) && experts == ExpertTensors::separate;
      count = std::ssize(list) + (repeats ? kTensorsOfExpert * (config.experts->count - 1) : 0);
    }
    all += *count;
  }
  return all;
}

std::vector<HfAlias> decoder_aliases(const DecoderConfig& config) {
  if (!config.tie_word_embeddings) return {};
  return {{.hf_name = kOutput, .of = kEmbedding}};
}

}  // namespace tessera::models
