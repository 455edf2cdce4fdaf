// The checker for the ranks of a mesh that all carry out one schedule.
#pragma once
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/schedule/check/together.h"

namespace tessera::schedule {

// Each role's communicators lie along the axis that its name begins with ("gtp_gather": gtp), those of "world" and of
// names that begin so ("world_casts") along all axes; roles of other names along no axis, every rank by itself.
RankOrders mesh_orders(const mesh::Mesh& mesh, CallOrder order);

// check() of the schedule and check_together() of all ranks. Empty: proved.
std::vector<std::string> check_mesh(const mesh::Mesh& mesh, const Trace& trace, const std::vector<ParameterSize>& sizes,
                                    const Schedule& schedule);

}  // namespace tessera::schedule
