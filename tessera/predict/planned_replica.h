// The sizes of a model's parameters in one replica of a mesh with unused places. The number of replicas determines the
// bytes that replicas exchange. A replica of a large mesh therefore takes no longer to plan than a mesh of one replica.
#pragma once
#include <vector>

#include "tessera/predict/dry_step.h"
#include "tessera/predict/planned_parameters.h"

namespace tessera::predict {

// Describes a replica and the mesh to which the replica belongs.
struct ReplicaOfMesh {
  std::int64_t ranks = 1;  // number of ranks of the mesh
  int replicas = 1;        // number of replicas of the mesh that have a rank
  // Number of replicas that update the optimizer's state under ZeRO-1 (shard::Cuts::updating_replicas).
  int updating = 1;
  bool updates = true;  // whether this replica updates the optimizer's state
  // Whether gradients are summed over replicas by all-reduces. This requires that each replica holds the gradient in
  // one shard, and that these shards are equal.
  bool all_reduces = false;
};

// Returns the sizes of the parameters of a dry step, by id. The dry step has a mesh that contains only the replica. The
// bytes that all ranks receive (PlannedParameter::gather_total and similar members) are the bytes of the replica's
// ranks.
std::vector<PlannedParameter> planned_parameters(const DryStep& dry, const shard::ParameterTypes& types,
                                                 const ReplicaOfMesh& whole);
// Raises the bytes that a rank receives from other replicas to those of the same parameter in `other`, if those are
// larger. All ranks of a sum must plan with the same number of bytes.
void raise_replicas(std::vector<PlannedParameter>& parameters, const std::vector<PlannedParameter>& other);

}  // namespace tessera::predict
