#include "tessera/predict/planned_parameters.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "tessera/shard/encoded.h"
#include "tessera/shard/rows.h"
#include "tessera/shard/way_bytes.h"

namespace tessera::predict {
namespace {

std::int64_t greatest(const layout::Layout& layout) {
  std::int64_t size = 0;
  for (const layout::LocalLayout& local : layout.ranks) size = std::max(size, local.size);
  return size;
}

// Elements that a rank of a replica stores at most, and updates at most.
struct Stored {
  std::int64_t shard = 0, state = 0;
};

Stored stored(const shard::ParameterLayouts& layouts, const shard::Cuts& cuts) {
  Stored most;
  for (int rank = 0; rank < layouts.home.size(); ++rank)
    for (const layout::LocalLayout& local : layouts.stored(rank, cuts.parts).ranks) {
      most.shard = std::max(most.shard, local.size);
      if (!layouts.is_cut || !cuts.splits_state()) continue;
      for (const layout::LocalLayout& own : layouts.updated(local, cuts.replicas))
        most.state = std::max(most.state, own.size);
    }
  if (!layouts.is_cut || !cuts.splits_state()) most.state = most.shard;
  return most;
}

}  // namespace

PlannedParameter planned_parameter(const shard::ParameterSpec& spec, const shard::ParameterTypes& run_types,
                                   const MeshDegrees& mesh) {
  const shard::ParameterTypes& types = shard::types_of(spec, run_types);
  const shard::Cuts cuts{.parts = mesh.gtp, .replicas = mesh.dp, .zero = mesh.zero, .node = mesh.node};
  const shard::ParameterLayouts layouts = shard::layouts_of(spec);
  PlannedParameter planned{.size = shard::parameter_size(spec, layouts, types, cuts),
                           .shard_elements = stored(layouts, cuts).shard,
                           .state_elements = stored(layouts, cuts).state,
                           .compute_elements = greatest(spec.compute),
                           .cast = {.elements = layouts.home.shape.elements(),
                                    .is_encoded = spec.encoding.has_value(),
                                    .has_tensor_scale = spec.encoding && shard::has_tensor_scale(*spec.encoding),
                                    .is_fp8_product = spec.product == quant::Format::fp8},
                           .product = spec.product};
  const bool by_rows = shard::exchanges_rows(spec, layouts, types, cuts);
  if (by_rows) planned.row_buffers = shard::messages_of(spec, layouts, mesh.gtp).buffers(types.model);
  for (const shard::PlaneSpec& plane : shard::planes_of(spec, types))
    planned.stored_bytes += plane.bytes(stored(shard::plane_layouts(spec, plane, layouts), cuts).shard);
  const shard::Ways all = shard::WayBytes(spec, layouts, types, cuts, by_rows).of_all_ranks();
  planned.gather_total = total_bytes(all.gather);
  planned.reduce_total = total_bytes(all.reduce);
  planned.replica_total = total_bytes(all.replicas);
  planned.publish_total = total_bytes(all.publish);
  return planned;
}

std::vector<PlannedParameter> planned_parameters(const models::ModelConfig& model, const shard::ParameterTypes& types,
                                                 const MeshDegrees& mesh, bool sequence_parallel,
                                                 const shard::RowReads& embedding, const shard::FormatPolicy& wire,
                                                 const shard::FormatPolicy& products,
                                                 const std::optional<shard::FormatPolicy>& backward) {
  std::vector<shard::ParameterSpec> specs =
      model.parameters({.tp_size = mesh.tp, .partial_norms = sequence_parallel && mesh.tp > 1, .embedding = embedding});
  std::vector<PlannedParameter> all;
  using Formats = std::tuple<std::string, std::optional<quant::Encoding>, quant::Format, std::int64_t>;
  std::map<Formats, PlannedParameter> of_blocks;
  for (shard::ParameterSpec& spec : specs) {
    shard::set_encoding(spec, wire, types_of(spec, types));
    shard::set_product(spec, products, types_of(spec, types));
    shard::set_backward(spec, backward.value_or(wire), types_of(spec, types));
    const std::string prefix = "layers.";
    if (!spec.name.starts_with(prefix)) {
      all.push_back(planned_parameter(spec, types, mesh));
      continue;
    }
    std::string in_block = spec.name.substr(spec.name.find('.', prefix.size()));
    auto [found, is_new] =
        of_blocks.try_emplace({std::move(in_block), spec.encoding, spec.product, spec.rows_together});
    if (is_new) found->second = planned_parameter(spec, types, mesh);
    all.push_back(found->second);
    all.back().size.name = spec.name;
  }
  for (std::size_t id = 0; id < specs.size(); ++id) {
    if (!specs[id].backward) continue;
    all[id].copy = static_cast<schedule::ParameterId>(all.size());
    all.push_back(planned_parameter(shard::backward_copy(specs[id]), types, mesh));
  }
  return all;
}

}  // namespace tessera::predict
