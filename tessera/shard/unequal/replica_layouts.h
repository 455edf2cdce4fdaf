// Layouts over all ranks of a replica in which compute groups lack ranks. The ranks are in the order of places: compute
// group by compute group. Pure.
//
// A rank stores only elements of its home part. The rows of each part of a full group are divided over the compute
// groups of the replica, in proportion to the ranks of the groups. In its group, the rank with the element in its home
// part stores it. With one compute group, storage equals home.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/shard/plane.h"

namespace tessera::shard {

// Returns the home parts of all ranks. Each element is once in every group.
layout::Layout replica_homes(const std::vector<GroupLayouts>& groups);

// Returns the storage layout. full: the home layout of a full group. `together`: see ParameterLayouts.
layout::Layout replica_storage(const layout::Layout& full, const std::vector<GroupLayouts>& groups, bool is_cut,
                               std::int64_t together);

// Throws Error if the storage does not hold each element once, or if a rank stores an element outside its home part.
void check_replica(const layout::Layout& storage, const layout::Layout& homes, const std::string& name);

}  // namespace tessera::shard
