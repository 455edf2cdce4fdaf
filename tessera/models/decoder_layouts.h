// The compute layouts of a dense decoder's weights over tp: what of each logical tensor a tp rank needs. Integers only.
// tp need divide nothing, and ranks need not hold alike: all follows from the lists of what each rank holds.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/models/decoder_config.h"
#include "tessera/models/tp_parts.h"

namespace tessera::models {

// Everything as evenly as it goes.
TpParts even_parts(const DecoderConfig& config, int tp_size);
// Errors: lists for different numbers of ranks; a unit that no rank holds, or two; more ranges of a vocabulary than
// ops::IdRanges has room for.
void check_parts(const DecoderConfig& config, const TpParts& parts);

// Query heads of a tp rank, and the key/value heads that they read (which may be needed on several ranks) in the order
// in which its query heads come to them.
struct HeadPart {
  std::vector<layout::Range> q, kv;
  std::vector<int> kv_of_q;  // local key/value head of each local query head
  std::int64_t kv_heads = 0;
  std::int64_t q_heads() const { return static_cast<std::int64_t>(kv_of_q.size()); }
};
HeadPart head_part(const DecoderConfig& config, const std::vector<layout::Range>& q);

layout::Layout qkv_layout(const DecoderConfig& config, const TpParts& parts);       // rows q | k | v by heads
layout::Layout qkv_bias_layout(const DecoderConfig& config, const TpParts& parts);  // one row, cut as qkv's rows
layout::Layout attention_output_layout(const DecoderConfig& config, const TpParts& parts);  // columns by query heads
layout::Layout gate_up_layout(const DecoderConfig& config, const TpParts& parts);           // rows gate | up
layout::Layout down_layout(const DecoderConfig& config, const TpParts& parts);              // columns
layout::Layout vocabulary_layout(const DecoderConfig& config, const TpParts& parts);        // rows

}  // namespace tessera::models
