// The compute layouts of a Llama's weights over tp: what of each logical tensor a tp rank needs. Integers only. tp need
// divide nothing: heads, feed-forward columns and vocabulary rows are spread as evenly as they go, down to none on a
// rank.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/models/llama_config.h"

namespace tessera::models {

// Query heads of a tp rank, and the key/value heads that they read (which may be needed on several ranks).
struct HeadPart {
  layout::Range q, kv;
};
HeadPart head_part(const LlamaConfig& config, int tp_rank, int tp_size);

layout::Layout qkv_layout(const LlamaConfig& config, int tp_size);               // rows q | k | v by heads
layout::Layout attention_output_layout(const LlamaConfig& config, int tp_size);  // columns by query heads
layout::Layout gate_up_layout(const LlamaConfig& config, int tp_size);           // rows gate | up
layout::Layout down_layout(const LlamaConfig& config, int tp_size);              // columns
layout::Layout vocabulary_layout(const LlamaConfig& config, int tp_size);        // rows
layout::Layout norm_layout(const LlamaConfig& config, int tp_size);              // replicated

}  // namespace tessera::models
