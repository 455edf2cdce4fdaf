#include "tessera/predict/planned_replica.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/operation.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::predict {
namespace {

using schedule::Activity;

// The largest and the smallest part of a shard of this replica that another replica updates.
struct UpdatedParts {
  std::int64_t shard = 0, most = 0;
  std::int64_t others = 0;  // largest number of elements that a rank stores but does not update
};

UpdatedParts updated_parts(const shard::ParameterLayouts& layouts, const shard::Cuts& cuts,
                           const ReplicaOfMesh& whole) {
  UpdatedParts parts;
  const shard::StoredParts stored(layouts, cuts);
  for (const shard::Place& place : stored.places()) {
    const layout::LocalLayout& local = stored.of(place);
    std::int64_t least = 0;
    if (whole.updates) {
      const std::vector<layout::LocalLayout> updated = layouts.updated(local, whole.updating);
      least = updated.back().size;
      for (const layout::LocalLayout& own : updated) {
        parts.most = std::max(parts.most, own.size);
        least = std::min(least, own.size);
      }
    }
    parts.shard = std::max(parts.shard, local.size);
    parts.others = std::max(parts.others, local.size - least);
  }
  return parts;
}

// Returns the bytes that a rank receives in a sum over replicas if every replica stores the whole sum.
schedule::Way whole_sum(const PlannedParameter& planned, bool is_cut, const shard::ParameterTypes& types,
                        const ReplicaOfMesh& whole) {
  const std::int64_t bytes = types.accumulator_bytes(planned.shard_elements);
  if (whole.all_reduces) return {{Activity::replicas, comm::all_reduce_received(bytes, whole.replicas)}};
  // The first rank of each replica gives a vector that all ranks store; the other ranks receive every term.
  return {{Activity::replicas, (whole.replicas - (is_cut ? 1 : 0)) * bytes}};
}

PlannedParameter planned_in_replica(const shard::ParameterSpec& spec, const shard::ParameterTypes& run_types,
                                    const shard::Cuts& cuts, const ReplicaOfMesh& whole) {
  const shard::ParameterTypes types = shard::types_of(spec, run_types);
  PlannedParameter planned = planned_parameter(spec, run_types, cuts);
  if (whole.replicas == 1) return planned;
  const shard::ParameterLayouts layouts = shard::layouts_of(spec, cuts);
  const std::int64_t others = whole.replicas - 1;
  if (!layouts.is_cut || !cuts.zero) {
    if (spec.trainable) planned.size.replicas = whole_sum(planned, layouts.is_cut, types, whole);
    return planned;
  }
  const UpdatedParts parts = updated_parts(layouts, cuts, whole);
  if (spec.trainable) {
    planned.state_elements = parts.most;
    planned.size.replicas = {{Activity::replicas, others * types.accumulator_bytes(parts.most)}};
  }
  std::int64_t published = 0;
  for (const shard::PlaneSpec& plane : shard::planes_of(spec, types))
    published += plane.bytes(updated_parts(shard::plane_layouts(spec, plane, layouts), cuts, whole).others);
  planned.size.publish = {{Activity::publish, published}};
  return planned;
}

}  // namespace

std::vector<PlannedParameter> planned_parameters(const DryStep& dry, const shard::ParameterTypes& types,
                                                 const ReplicaOfMesh& whole) {
  return planned_each(dry, [&](const shard::ParameterSpec& spec, const shard::Cuts& cuts) {
    return planned_in_replica(spec, types, cuts, whole);
  });
}

void raise_replicas(std::vector<PlannedParameter>& parameters, const std::vector<PlannedParameter>& other) {
  TESSERA_CHECK(parameters.size() == other.size(), "replicas of {} and {} parameters", parameters.size(), other.size());
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    schedule::raise(parameters[id].size.replicas, other[id].size.replicas);
    schedule::raise(parameters[id].size.publish, other[id].size.publish);
  }
}

}  // namespace tessera::predict
