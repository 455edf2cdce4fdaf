#include "tessera/predict/planned_replica.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/operation.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::predict {
namespace {

using mesh::Transfer;

// Elements of a rank's shard, as maximums over the ranks.
struct UpdatedParts {
  std::int64_t updated = 0;  // by the rank
  std::int64_t others = 0;   // stored, and not updated by the rank
};

UpdatedParts updated_parts(const shard::ParameterLayouts& layouts, const std::vector<layout::LocalLayout>& stored,
                           const ReplicaOfMesh& whole) {
  UpdatedParts parts;
  for (const layout::LocalLayout& local : stored) {
    if (!whole.updates) {
      parts.others = std::max(parts.others, local.size);
      continue;
    }
    for (const int replica : layouts.extreme_replicas(whole.updating)) {
      const std::int64_t updated = layouts.updated_elements(local, whole.updating, replica);
      parts.updated = std::max(parts.updated, updated);
      parts.others = std::max(parts.others, local.size - updated);
    }
  }
  return parts;
}

std::vector<layout::LocalLayout> stored_by(const shard::ParameterLayouts& layouts, const shard::Cuts& cuts) {
  std::vector<layout::LocalLayout> stored;
  const shard::StoredParts parts(layouts, cuts);
  for (const shard::Place& place : parts.places()) stored.push_back(parts.of(place));
  return stored;
}

// Returns the bytes that a rank receives in a sum over replicas that all store the sum.
std::int64_t whole_sum(std::int64_t shard_bytes, bool is_cut, const ReplicaOfMesh& whole) {
  if (whole.all_reduces) return comm::all_reduce_received(shard_bytes, whole.replicas);
  // The first rank of each replica gives a vector that all ranks store; the other ranks receive every term.
  return (whole.replicas - (is_cut ? 1 : 0)) * shard_bytes;
}

}  // namespace

ReplicaParameters::ReplicaParameters(const DryStep& dry, const shard::ParameterTypes& types)
    : alone_(planned_parameters(dry, types)), first_(first_equal(dry.parameters)) {
  for (std::size_t id = 0; id < first_.size(); ++id) {
    if (first_[id] != id) continue;
    const shard::ParameterSpec& spec = dry.parameters[id];
    const shard::Cuts& cuts = dry.cuts[static_cast<std::size_t>(spec.domain)];
    const shard::ParameterLayouts layouts = shard::layouts_of(spec, cuts);
    StoredPlane weight;  // not an initializer list, for which gcc 12 prints a wrong warning
    weight.layouts = layouts;
    weight.stored = stored_by(layouts, cuts);
    Different parameter{.types = shard::types_of(spec, types),
                        .is_cut = layouts.is_cut,
                        .is_trainable = spec.trainable,
                        .splits_state = layouts.is_cut && cuts.zero,
                        .weight = std::move(weight),
                        .planes = {}};
    for (const shard::PlaneSpec& plane : shard::planes_of(spec, types)) {
      const shard::ParameterLayouts of_plane = shard::plane_layouts(spec, plane, layouts);
      parameter.planes.push_back({.spec = plane, .layouts = of_plane, .stored = stored_by(of_plane, cuts)});
    }
    different_.emplace(id, std::move(parameter));
  }
}

void ReplicaParameters::set_bytes(const Different& parameter, const ReplicaOfMesh& whole,
                                  PlannedParameter& planned) const {
  const shard::ParameterTypes& types = parameter.types;
  if (!parameter.splits_state) {
    const std::int64_t shard = types.accumulator_bytes(planned.shard_elements);
    if (parameter.is_trainable)
      planned.size.replicas = {{Transfer::replicas, whole_sum(shard, parameter.is_cut, whole)}};
    return;
  }
  if (parameter.is_trainable) {
    planned.state_elements = updated_parts(parameter.weight.layouts, parameter.weight.stored, whole).updated;
    const std::int64_t terms = whole.replicas - 1;
    planned.size.replicas = {{Transfer::replicas, terms * types.accumulator_bytes(planned.state_elements)}};
  }
  std::int64_t published = 0;
  for (const StoredPlane& plane : parameter.planes)
    published += plane.spec.bytes(updated_parts(plane.layouts, plane.stored, whole).others);
  planned.size.publish = {{Transfer::publish, published}};
}

std::vector<PlannedParameter> ReplicaParameters::in(const ReplicaOfMesh& whole) const {
  std::vector<PlannedParameter> all = alone_;
  if (whole.replicas == 1) return all;
  for (std::size_t id = 0; id < all.size(); ++id) {
    const std::size_t first = first_[id];
    if (first == id) {
      set_bytes(different_.at(id), whole, all[id]);
      continue;
    }
    all[id].size.replicas = all[first].size.replicas;
    all[id].size.publish = all[first].size.publish;
    all[id].state_elements = all[first].state_elements;
  }
  return all;
}

void raise_replicas(std::vector<PlannedParameter>& parameters, const std::vector<PlannedParameter>& other) {
  TESSERA_CHECK(parameters.size() == other.size(), "replicas of {} and {} parameters", parameters.size(), other.size());
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    schedule::raise(parameters[id].size.replicas, other[id].size.replicas);
    schedule::raise(parameters[id].size.publish, other[id].size.publish);
  }
}

}  // namespace tessera::predict
