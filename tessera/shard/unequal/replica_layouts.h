// Layouts over all ranks of a replica in which compute groups lack ranks. The ranks are ordered by compute group, then
// by place. Pure.
//
// A rank stores only elements of its home part. The rows of each rank's part in a full group are divided over the
// compute groups of the replica, in proportion to their numbers of ranks. Within its compute group, an element is
// stored by the rank that has it in its home part. With one compute group, the storage layout equals the home layout.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/shard/plane.h"

namespace tessera::shard {

// Returns the layout of the home parts of all ranks. Every compute group has each element exactly once.
layout::Layout replica_homes(const std::vector<GroupLayouts>& groups);

// Returns the storage layout. `full` is the home layout of a full group. `is_cut` and `together` have the meaning of
// ParameterLayouts.
layout::Layout replica_storage(const layout::Layout& full, const std::vector<GroupLayouts>& groups, bool is_cut,
                               std::int64_t together);

// Throws Error unless each element is stored exactly once, by a rank that has the element in its home part.
void check_replica(const layout::Layout& storage, const layout::Layout& homes, const std::string& name);

}  // namespace tessera::shard
