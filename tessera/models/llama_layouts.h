// The compute layouts of a Llama's weights over tp: what of each logical tensor a tp rank needs. Integers only. tp need
// divide nothing, and ranks need not hold alike: all follows from the lists of what each rank holds.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/models/llama_config.h"

namespace tessera::models {

// By tp rank, the ranges of units that it holds, in local order: its own first, then adopted ones. Each unit is on one
// rank.
using UnitRanges = std::vector<std::vector<layout::Range>>;

// What tp deals out in a tp group; the same on all its ranks. A rank may have nothing of something.
struct LlamaParts {
  UnitRanges heads;       // query heads
  UnitRanges ffn;         // columns of the feed-forward part
  UnitRanges vocabulary;  // rows of the embedding and of the output layer
  int tp_size() const { return static_cast<int>(heads.size()); }
};
// Everything as evenly as it goes.
LlamaParts even_parts(const LlamaConfig& config, int tp_size);
// Errors: lists for different numbers of ranks; a unit that no rank holds, or two.
void check_parts(const LlamaConfig& config, const LlamaParts& parts);

// Query heads of a tp rank, and the key/value heads that they read (which may be needed on several ranks) in the order
// in which its query heads come to them.
struct HeadPart {
  std::vector<layout::Range> q, kv;
  std::vector<int> kv_of_q;  // local key/value head of each local query head
  std::int64_t kv_heads = 0;
  std::int64_t q_heads() const { return static_cast<std::int64_t>(kv_of_q.size()); }
};
HeadPart head_part(const LlamaConfig& config, const std::vector<layout::Range>& q);

layout::Layout qkv_layout(const LlamaConfig& config, const LlamaParts& parts);               // rows q | k | v by heads
layout::Layout attention_output_layout(const LlamaConfig& config, const LlamaParts& parts);  // columns by query heads
layout::Layout gate_up_layout(const LlamaConfig& config, const LlamaParts& parts);           // rows gate | up
layout::Layout down_layout(const LlamaConfig& config, const LlamaParts& parts);              // columns
layout::Layout vocabulary_layout(const LlamaConfig& config, const LlamaParts& parts);        // rows
layout::Layout norm_layout(const LlamaConfig& config, int tp_size);                          // replicated

}  // namespace tessera::models
