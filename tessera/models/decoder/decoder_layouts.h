// The compute layouts of a decoder's weights over tp: the part of each logical tensor that a tp rank needs. The
// functions only use integer arithmetic. The tp size need not divide the sizes of the model, and ranks may have parts
// of different sizes. Every layout follows from the lists of units of each rank (TpParts).
#pragma once
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/decoder/tp_parts.h"
#include "tessera/shard/domain.h"

namespace tessera::models {

// Returns parts that are as even as possible.
TpParts even_parts(const DecoderConfig& config, int tp_size);
// Returns the parts of a tp group with `places` places, of which only the places `slots` have ranks. Each rank has the
// even part of its place. The units of the other places are spread evenly over the ranks
// (shard/unequal/spread_units.h).
TpParts parts_of(const DecoderConfig& config, int places, const shard::Slots& slots);
// Throws Error for: lists with different numbers of ranks; a unit that does not belong to exactly one rank; a rank's
// vocabulary with more ranges than ops::IdRanges::kMaxRanges.
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

// Return the layouts of a block's weights and bias. The rows of qkv are q, k and v, each sharded by heads. The bias is
// one row that is sharded as the rows of qkv. The columns of the attention output are sharded by query heads. The rows
// of gate_up are gate and up, each sharded by feed-forward units. The columns of down are sharded by feed-forward
// units.
layout::Layout qkv_layout(const DecoderConfig& config, const TpParts& parts);
layout::Layout qkv_bias_layout(const DecoderConfig& config, const TpParts& parts);
layout::Layout attention_output_layout(const DecoderConfig& config, const TpParts& parts);
layout::Layout gate_up_layout(const DecoderConfig& config, const TpParts& parts);
layout::Layout down_layout(const DecoderConfig& config, const TpParts& parts);
// Return the layouts of a shared expert: as gate_up_layout and down_layout, with feed-forward units that are sharded
// evenly.
layout::Layout shared_gate_up_layout(const DecoderConfig& config, int tp_size);
layout::Layout shared_down_layout(const DecoderConfig& config, int tp_size);
// Returns the layout over the ranks of etp x ep, etp fastest. The matrices of the experts are stacked by rows. Rank (t,
// p) has the experts even_part(experts, p, ep). For each of these experts, the rank has the gate rows even_part(width,
// t, etp), then the up rows of this range.
layout::Layout experts_gate_up_layout(const DecoderConfig& config, int etp, int ep);
// Rank (t, p) has the columns even_part(width, t, etp) of the experts that it has in experts_gate_up_layout.
layout::Layout experts_down_layout(const DecoderConfig& config, int etp, int ep);
// Returns the layout of the embedding and of the output layer, whose rows are sharded.
layout::Layout vocabulary_layout(const DecoderConfig& config, const TpParts& parts);

}  // namespace tessera::models
