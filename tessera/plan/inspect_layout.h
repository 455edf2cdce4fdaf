// The output of `tessera inspect layout`: the parts of a model that each rank of a mesh holds.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/settings/resolved_run.h"

namespace tessera::plan {

// Computes the layouts of a run without allocating tensors or starting ranks. Returns
//   {"model", "ranks",
//    "places": as inspect_places returns them; null if every place has a rank
//    "grids": [[{"axis", "size"}]],
//    "domains": [{"compute", "storage", "duplicates", "replicas"}], each a list of axes
//    "roles": [{"role", "groups"}], the groups as lists of ranks
//    "parameters": [{"name", "shape", "domain", "types", "storage_bytes", "compute_bytes",
//                    "columnwise_bytes", "state_bytes", "gather_bytes", "reduce_bytes", "replica_bytes", "parts"}],
//    "storage_bytes" and the other lists of bytes, the sums over the parameters}
// Each list of bytes is by rank:
//   storage_bytes   the stored planes of the weight (bf16: one plane; a number format: data and scales)
//   compute_bytes   these planes for the rank's compute part, which is gathered
//   columnwise_bytes   the columnwise copy of this part, which a residency makes once; 0 if backward passes read no
//   copy state_bytes     the master and the two moments of the part that the rank updates; 0 if frozen gather_bytes
//   received by one gather of the weight reduce_bytes    received by the reduction of one microbatch's gradient
//   replica_bytes   received once a step: the sum over replicas and, with ZeRO-1, the new weights
// "types" lists the types of the planes. "parts" lists {"ranks", "storage", "compute", "state"} for each group of ranks
// with equal parts. A part is a list of boxes [first row, end row, first column, end column] of the logical matrix,
// which has shape[0] rows.
//
// Throws the InputError that a run with this model and mesh would throw.
nlohmann::ordered_json inspect_layout(const settings::ResolvedRun& run);

// Returns the result of inspect_layout as text. The text lists at most `max_groups` groups of a role.
std::string layout_text(const nlohmann::ordered_json& inspected, std::size_t max_groups = 16);

}  // namespace tessera::plan
