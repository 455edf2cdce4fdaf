#include "tessera/predict/planned_parameters.h"

#include <algorithm>

#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/ways/way_bytes.h"

namespace tessera::predict {
namespace {

using schedule::ParameterId;

// Compares everything except the names.
bool are_equal(shard::ParameterSpec a, const shard::ParameterSpec& b) {
  a.name = b.name;
  return a == b;
}

// The elements that a rank of a replica stores, and the elements that it updates; maximum over the ranks.
struct Stored {
  std::int64_t shard = 0, state = 0;
};

Stored stored(const shard::ParameterLayouts& layouts, const shard::Cuts& cuts) {
  Stored most;
  const shard::StoredParts parts(layouts, cuts);
  const bool splits = layouts.is_cut && cuts.splits_state();
  const auto updating = static_cast<int>(cuts.updating_replicas().size());
  for (const shard::Place& place : parts.places()) {
    const layout::LocalLayout& local = parts.of(place);
    most.shard = std::max(most.shard, local.size);
    if (!splits) continue;
    for (const int replica : layouts.extreme_replicas(updating))
      most.state = std::max(most.state, layouts.updated_elements(local, updating, replica));
  }
  if (!splits) most.state = most.shard;
  return most;
}

}  // namespace

PlannedParameter planned_parameter(const shard::ParameterSpec& spec, const shard::ParameterTypes& run_types,
                                   const shard::Cuts& cuts) {
  const shard::ParameterTypes& types = shard::types_of(spec, run_types);
  const shard::ParameterLayouts layouts = shard::layouts_of(spec, cuts);
  const Stored most = stored(layouts, cuts);
  PlannedParameter planned{.size = shard::parameter_size(spec, layouts, types, cuts),
                           .shard_elements = most.shard,
                           .gradient_elements = spec.trainable ? most.shard : 0,
                           .state_elements = spec.trainable ? most.state : 0,
                           .written_by_layers = shard::writes_main_grad(spec, layouts, types, cuts),
                           .splits_master = shard::splits_master(spec, types, cuts)};
  planned.master_bytes = shard::master_bytes(spec, types, cuts, planned.state_elements);
  const bool by_rows = shard::exchanges_rows(spec, layouts, types, cuts);
  if (by_rows) planned.row_buffers = shard::messages_of(spec, layouts, cuts.parts).buffers(types.model);
  if (shard::has_row_gradients(spec, layouts, types, cuts)) {
    planned.rows_read = spec.reads.per_microbatch * spec.compute.shape.cols;
    planned.squares_rows = cuts.replicas == 1;
  }
  for (const shard::PlaneSpec& plane : shard::planes_of(spec, types))
    planned.stored_bytes += plane.bytes(stored(shard::plane_layouts(spec, plane, layouts), cuts).shard);
  const shard::Ways all = shard::WayBytes(spec, layouts, types, cuts, by_rows).all_ranks();
  planned.gather_total = total_bytes(all.gather);
  planned.reduce_total = total_bytes(all.reduce);
  planned.replica_total = total_bytes(all.replicas);
  planned.publish_total = total_bytes(all.publish);
  return planned;
}

RankElements elements_of_rank(const shard::ParameterSpec& spec, const shard::ParameterTypes& run_types,
                              const shard::Cuts& cuts, const shard::Place& place) {
  if (!spec.trainable) return {};
  const shard::ParameterLayouts layouts = shard::layouts_of(spec, cuts);
  const shard::RankParts parts = shard::rank_parts(layouts, cuts, place);
  const shard::ParameterTypes types = shard::types_of(spec, run_types);
  const bool written_by_layers = shard::writes_main_grad(spec, layouts, types, cuts);
  RankElements elements{.summed = parts.local_storage.size,
                        .updated = parts.local_state.size,
                        .squared = parts.local_state.size,
                        .gradient_type = written_by_layers ? types.wire : types.accumulator};
  const bool has_rows = shard::has_row_gradients(spec, layouts, types, cuts);
  if (written_by_layers || has_rows) elements.summed = 0;
  if (has_rows && cuts.replicas == 1) elements.squared = 0;
  return elements;
}

std::vector<std::size_t> first_equal(const std::vector<shard::ParameterSpec>& specs) {
  std::vector<std::size_t> first, different;
  for (std::size_t id = 0; id < specs.size(); ++id) {
    const auto like =
        std::ranges::find_if(different, [&](std::size_t other) { return are_equal(specs[other], specs[id]); });
    first.push_back(like == different.end() ? id : *like);
    if (like == different.end()) different.push_back(id);
  }
  return first;
}

std::vector<PlannedParameter> planned_parameters(const DryStep& dry, const shard::ParameterTypes& types) {
  const std::vector<shard::ParameterSpec>& specs = dry.parameters;
  const std::vector<std::size_t> first = first_equal(specs);
  std::vector<PlannedParameter> all;
  for (std::size_t id = 0; id < specs.size(); ++id) {
    if (first[id] == id) {
      all.push_back(planned_parameter(specs[id], types, dry.cuts[static_cast<std::size_t>(specs[id].domain)]));
      continue;
    }
    all.push_back(all[first[id]]);
    all.back().size.name = specs[id].name;
  }
  for (std::size_t id = 0; id < dry.backward_weights.size(); ++id) all[id].backward_weight = dry.backward_weights[id];
  return all;
}

}  // namespace tessera::predict
