// Computes the sizes of a parameter for the planner from the parameter's layouts. Pure.
#pragma once
#include "tessera/schedule/schedule.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Returns the sizes as the maximum over the ranks of this rank's replica (cuts.replica), so that all these ranks plan
// equal schedules. For transfers between replicas, the bytes are the maximum over all replicas.
schedule::ParameterSize parameter_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                       const ParameterTypes& types, const Cuts& cuts);

// Returns whether a table whose rows are read by index exchanges rows, instead of being gathered. R =
// reads.per_microbatch is the number of rows in a message. C is the number of columns. G is the number of ranks that
// store a compute part, in the replica with the most parts. With Lookup::automatic, rows are exchanged if
//     (G - 1) R (C size(model) + 8 + C size(wire) + 8)
// bytes are less than the bytes that a rank receives in the gather and the reduction of the whole table. The sum counts
// the rows and their int64 indices, and the gradients of the rows with their indices. For a frozen table, the gradients
// do not count. Returns false if no replica shards the table. Exchanging rows requires that each row is whole on one
// compute rank and stored once in a replica, in one plane of the model's type. If this requirement is not met, throws
// Error for Lookup::rows and otherwise returns false.
bool exchanges_rows(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                    const Cuts& cuts);

// Returns whether the gradient of a microbatch contains only the rows that the rank has read (rows.h): for a trained
// table that exchanges rows, and for a table that one rank of each compute place stores, if each row is whole on one
// compute rank and no product computes the whole gradient. In the second case, layers read the weight itself. With
// Lookup::automatic, such a rank then reads fewer rows in a microbatch than it stores. Lookup::rows
// omits this condition. With Lookup::gather the function returns false.
bool has_row_gradients(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                       const Cuts& cuts);

// Returns whether layers write the gradient directly to main_grad: a gradient of a step is one value, which one product
// computes, and no rank adds another value to it. main_grad then has the wire type, and there is no staging and no sum.
bool writes_main_grad(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                      const Cuts& cuts);

// Returns whether a parameter has a master beside its weight.
bool has_master(const ParameterSpec& spec, const ParameterTypes& types);
// Returns whether the weight can be a part of its fp32 master: it is stored in one plane, in bf16, and backward passes
// read no other weight.
bool can_split_master(const ParameterSpec& spec, const ParameterTypes& types);
// Returns whether masters are stored as 16 bits beside each element of the weight.
bool splits_master(const ParameterSpec& spec, const ParameterTypes& types, const Cuts& cuts);
// Returns the bytes of ShardedParameter::master for this number of elements.
std::int64_t master_bytes(const ParameterSpec& spec, const ParameterTypes& types, const Cuts& cuts,
                          std::int64_t elements);

}  // namespace tessera::shard
