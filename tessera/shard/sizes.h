// What a parameter weighs on its way, for the planner: pure, from layouts alone.
#pragma once
#include "tessera/schedule/schedule.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Bytes are the greatest over the ranks of a replica that is cut as `cuts` says, so that all of them plan the same
// schedule; those between replicas the greatest over all.
schedule::ParameterSize parameter_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                       const ParameterTypes& types, const Cuts& cuts);

// Whether a table that is read by row index exchanges rows instead of being gathered. For R = reads.per_microbatch rows
// (the same on every rank; messages have this size whatever is read), C columns and G ranks that store a part, with
// Lookup::automatic when
//     (G - 1) R (C size(model) + 8 + C size(wire) + 8)
// bytes, rows of the type and their int64 indices there and back, are less than gather and reduce of the whole receive
// (a frozen table has no way back). G is that of the replica that cuts it most. Never where no replica cuts it, or
// where its parts are duplicated. Errors: Lookup::rows for a table that compute ranks hold in other parts than whole
// rows of one rank each.
bool exchanges_rows(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                    const Cuts& cuts);

}  // namespace tessera::shard
