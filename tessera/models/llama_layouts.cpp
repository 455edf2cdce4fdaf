#include "tessera/models/llama_layouts.h"

namespace tessera::models {

HeadPart head_part(const LlamaConfig& config, int tp_rank, int tp_size) {
  const std::int64_t group = config.num_heads / config.num_kv_heads;
  HeadPart part{.q = layout::even_part(config.num_heads, tp_rank, tp_size), .kv = {}};
  if (part.q.size() > 0) part.kv = {part.q.begin / group, (part.q.end + group - 1) / group};
  return part;
}

layout::Layout qkv_layout(const LlamaConfig& config, int tp_size) {
  const std::int64_t head = config.head_dim;
  const std::int64_t k_begin = config.num_heads * head, v_begin = k_begin + config.num_kv_heads * head;
  std::vector<std::vector<layout::Range>> ranges;
  for (int rank = 0; rank < tp_size; ++rank) {
    const HeadPart part = head_part(config, rank, tp_size);
    ranges.emplace_back();
    if (part.q.size() == 0) continue;
    ranges.back() = {{part.q.begin * head, part.q.end * head},
                     {k_begin + part.kv.begin * head, k_begin + part.kv.end * head},
                     {v_begin + part.kv.begin * head, v_begin + part.kv.end * head}};
  }
  return layout::rows_by_rank({v_begin + config.num_kv_heads * head, config.hidden_size}, ranges);
}

layout::Layout attention_output_layout(const LlamaConfig& config, int tp_size) {
  return layout::cut_cols({config.hidden_size, config.num_heads * config.head_dim}, tp_size, config.head_dim);
}

layout::Layout gate_up_layout(const LlamaConfig& config, int tp_size) {
  const std::int64_t ffn = config.intermediate_size;
  return layout::cut_rows({2 * ffn, config.hidden_size}, {{"gate", ffn}, {"up", ffn}}, tp_size);
}

layout::Layout down_layout(const LlamaConfig& config, int tp_size) {
  return layout::cut_cols({config.hidden_size, config.intermediate_size}, tp_size);
}

layout::Layout vocabulary_layout(const LlamaConfig& config, int tp_size) {
  return layout::cut_rows({config.vocab_size, config.hidden_size}, {{"vocabulary", config.vocab_size}}, tp_size);
}

layout::Layout norm_layout(const LlamaConfig& config, int tp_size) {
  return layout::replicated({1, config.hidden_size}, tp_size);
}

}  // namespace tessera::models
