// The sizes of a model's parameters in one replica of a mesh with unused places. The bytes between replicas follow from
// the number of replicas, so a replica of a large mesh is as quick to plan as a mesh of one replica.
#pragma once
#include <vector>

#include "tessera/predict/dry_step.h"
#include "tessera/predict/planned_parameters.h"

namespace tessera::predict {

// A replica, and the mesh to which it belongs.
struct ReplicaOfMesh {
  std::int64_t ranks = 1;  // of the mesh
  int replicas = 1;        // of the mesh, those without a rank left out
  int updating = 1;        // replicas that update the optimizer's state under ZeRO-1 (shard::Cuts::updating_replicas)
  bool updates = true;     // whether this replica is one of them
  // Sums over replicas are all-reduces: all shards of a sum are equal, one in each replica.
  bool all_reduces = false;
};

// Returns the sizes of the parameters of a dry step on a mesh that consists of the replica alone, by id. The bytes that
// all ranks receive (PlannedParameter::gather_total and so on) are those of the replica.
std::vector<PlannedParameter> planned_parameters(const DryStep& dry, const shard::ParameterTypes& types,
                                                 const ReplicaOfMesh& whole);
// Raises the bytes that a rank receives from other replicas to those of the same parameter in another replica. All
// ranks of a sum plan with the same number.
void raise_replicas(std::vector<PlannedParameter>& parameters, const std::vector<PlannedParameter>& other);

}  // namespace tessera::predict
