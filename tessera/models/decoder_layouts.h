// The compute layouts of a dense decoder's weights over tp: which part of each logical tensor a tp rank needs. Only
// integer arithmetic. The tp size need not divide any size, and ranks may have different amounts. Every layout follows
// from the lists of units that each rank has.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/models/decoder_config.h"
#include "tessera/models/tp_parts.h"
#include "tessera/shard/domain.h"

namespace tessera::models {

// Returns parts that are as even as possible.
TpParts even_parts(const DecoderConfig& config, int tp_size);
// Returns the parts of a tp group of `places` places whose ranks are at `slots`: the even parts of these places, and
// the slices of the other places, spread evenly (shard/unequal/spread_units.h).
TpParts parts_of(const DecoderConfig& config, int places, const shard::Slots& slots);
// Throws Error if the lists have different numbers of ranks, if a unit is on no rank or on two, or if a rank's
// vocabulary has more ranges than ops::IdRanges::kMaxRanges.
void check_parts(const DecoderConfig& config, const TpParts& parts);

// A tp rank's query heads, and the key/value heads that they read. Several ranks may need the same key/value head. The
// key/value heads are in the order in which the query heads first read them.
struct HeadPart {
  std::vector<layout::Range> q, kv;
  std::vector<int> kv_of_q;  // local key/value head of each local query head
  std::int64_t kv_heads = 0;
  std::int64_t q_heads() const { return static_cast<std::int64_t>(kv_of_q.size()); }
};
HeadPart head_part(const DecoderConfig& config, const std::vector<layout::Range>& q);

layout::Layout qkv_layout(const DecoderConfig& config, const TpParts& parts);       // rows q | k | v by heads
layout::Layout qkv_bias_layout(const DecoderConfig& config, const TpParts& parts);  // one row, sharded as qkv's rows
layout::Layout attention_output_layout(const DecoderConfig& config, const TpParts& parts);  // columns by query heads
layout::Layout gate_up_layout(const DecoderConfig& config, const TpParts& parts);           // rows gate | up
layout::Layout down_layout(const DecoderConfig& config, const TpParts& parts);              // columns
// As gate_up_layout and down_layout, for a shared expert, whose columns are cut evenly.
layout::Layout shared_gate_up_layout(const DecoderConfig& config, int tp_size);
layout::Layout shared_down_layout(const DecoderConfig& config, int tp_size);
// The layout over the ranks of etp x ep, etp fastest. The matrices of the experts are stacked by rows. Rank (t, p) has
// the experts even_part(experts, p, ep). The rank has, for each of these experts, the gate rows
// even_part(width, t, etp), then the up rows of the same range.
layout::Layout experts_gate_up_layout(const DecoderConfig& config, int etp, int ep);
// Rank (t, p) has the columns even_part(width, t, etp) of the experts that it has in experts_gate_up_layout.
layout::Layout experts_down_layout(const DecoderConfig& config, int etp, int ep);
layout::Layout vocabulary_layout(const DecoderConfig& config, const TpParts& parts);  // rows

}  // namespace tessera::models
