// The sizes of a parameter for the planner, computed from layouts alone. Pure.
#pragma once
#include "tessera/schedule/schedule.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Returns the maximum over the ranks of a replica with the sharding `cuts`, so that all these ranks plan the same
// schedule. The bytes between replicas are the maximum over all replicas.
schedule::ParameterSize parameter_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                       const ParameterTypes& types, const Cuts& cuts);

// Returns whether a table that is read by row index exchanges rows and is not gathered. R = reads.per_microbatch is the
// number of rows in a message, the same on every rank, even if fewer rows are read. C is the number of columns. G is
// the number of ranks that store a part, in the replica with the most parts. With Lookup::automatic rows are exchanged
// if
//     (G - 1) R (C size(model) + 8 + C size(wire) + 8)
// bytes are less than the bytes that the gather and the reduction of the whole table receive. The sum counts rows and
// their int64 indices, there and back; a frozen table sends nothing back. Returns false if no replica shards the table.
// Exchanging rows requires that each row is whole on one compute rank and stored once in a replica, in one plane of the
// model's type. If a condition is not met, returns false, or throws Error for Lookup::rows.
bool exchanges_rows(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                    const Cuts& cuts);

}  // namespace tessera::shard
