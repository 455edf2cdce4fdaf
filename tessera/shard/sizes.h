// What a parameter weighs on its way, for the planner: pure, from layouts alone.
#pragma once
#include "tessera/schedule/schedule.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// The tp degree is spec.compute.size(); layouts are layouts_of(spec, cuts). Bytes are the greatest over the tp ranks,
// so that every rank plans the same schedule.
schedule::ParameterSize parameter_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                       const ParameterTypes& types, const Cuts& cuts);

// Whether a table that is read by row index exchanges rows instead of being gathered. For R = reads.per_microbatch rows
// (the same on every rank; messages have this size whatever is read), C columns and G gtp ranks, with Lookup::automatic
// when
//     (G - 1) R (C size(model) + 8 + C size(wire) + 8)
// bytes, rows of the type and their int64 indices there and back, are less than gather_wire + reduce_wire of the whole
// (a frozen table has no way back). Never where nothing is cut over gtp. Errors: Lookup::rows for a table that tp ranks
// hold in other parts than whole rows of one rank each.
bool exchanges_rows(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                    const Cuts& cuts);

// Received by a rank in one exchange, from layouts and cuts as above. The gradient is a whole one, not rows.
std::int64_t exchange_bytes(const ParameterLayouts& layouts, const ParameterTypes& types, const Cuts& cuts, int tp_rank,
                            int gtp_rank);

}  // namespace tessera::shard
