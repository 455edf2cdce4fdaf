// The sizes of a model's parameters in one replica of a mesh with unused places. The bytes between replicas follow from
// the number of replicas, so a replica of a large mesh is as quick to plan as a mesh of one replica.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "tessera/predict/dry_step.h"
#include "tessera/predict/planned_parameters.h"
#include "tessera/shard/plane.h"

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

// The parameters of one replica, planned for meshes with other replicas. Immutable.
class ReplicaParameters {
 public:
  // `dry`: a step on a mesh that consists of the replica alone.
  ReplicaParameters(const DryStep& dry, const shard::ParameterTypes& types);

  // Returns the sizes of the parameters by id. The bytes that all ranks receive (PlannedParameter::gather_total and so
  // on) are those of the replica.
  std::vector<PlannedParameter> in(const ReplicaOfMesh& whole) const;

 private:
  // A plane, as the ranks store it.
  struct StoredPlane {
    shard::PlaneSpec spec;
    shard::ParameterLayouts layouts;
    std::vector<layout::LocalLayout> stored;  // by rank
  };
  struct Different {
    shard::ParameterTypes types;
    bool is_cut = true, is_trainable = true, splits_state = true;  // splits_state: with several replicas
    StoredPlane weight;
    std::vector<StoredPlane> planes;
  };
  void set_bytes(const Different& parameter, const ReplicaOfMesh& whole, PlannedParameter& planned) const;

  std::vector<PlannedParameter> alone_;         // without other replicas
  std::vector<std::size_t> first_;              // first_equal
  std::map<std::size_t, Different> different_;  // by id
};
// Raises the bytes that a rank receives from other replicas to those of the same parameter in another replica. All
// ranks of a sum plan with the same number.
void raise_replicas(std::vector<PlannedParameter>& parameters, const std::vector<PlannedParameter>& other);

}  // namespace tessera::predict
