#include "tessera/predict/planned_parameters.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "tessera/layout/redistribute.h"
#include "tessera/models/llama_parameters.h"
#include "tessera/shard/encoded.h"
#include "tessera/shard/rows.h"

namespace tessera::predict {
namespace {

std::int64_t bytes(quant::DType type) {
  return static_cast<std::int64_t>(quant::size_of(type));
}

std::int64_t greatest(const layout::Layout& layout) {
  std::int64_t size = 0;
  for (const layout::LocalLayout& local : layout.ranks) size = std::max(size, local.size);
  return size;
}

std::int64_t sum(const layout::Layout& layout) {
  std::int64_t size = 0;
  for (const layout::LocalLayout& local : layout.ranks) size += local.size;
  return size;
}

// Elements that a rank of a replica stores at most, and updates at most; that all of them store.
struct Stored {
  std::int64_t shard = 0, state = 0, all = 0;
};

Stored stored(const shard::ParameterLayouts& layouts, const shard::Cuts& cuts) {
  Stored most;
  for (int rank = 0; rank < layouts.home.size(); ++rank)
    for (const layout::LocalLayout& local : layouts.stored(rank, cuts.parts).ranks) {
      most.shard = std::max(most.shard, local.size);
      most.all += local.size;
      if (!layouts.is_cut || !cuts.splits_state()) continue;
      for (const layout::LocalLayout& own : layouts.updated(local, cuts.replicas))
        most.state = std::max(most.state, own.size);
    }
  if (!layouts.is_cut || !cuts.splits_state()) most.state = most.shard;
  return most;
}

std::int64_t received_over_tp(const layout::Layout& from, const layout::Layout& to) {
  const layout::Plan plan = layout::redistribute(from, to);
  std::int64_t elements = 0;
  for (int rank = 0; rank < to.size(); ++rank) elements += plan.elements_received(rank);
  return elements;
}

}  // namespace

PlannedParameter planned_parameter(const shard::ParameterSpec& spec, const shard::ParameterTypes& run_types,
                                   const MeshDegrees& mesh) {
  const shard::ParameterTypes& types = shard::types_of(spec, run_types);
  const shard::Cuts cuts{.parts = mesh.gtp, .replicas = mesh.dp, .zero = mesh.zero, .node = mesh.node};
  const shard::ParameterLayouts layouts = shard::layouts_of(spec);
  const bool splits = layouts.is_cut && cuts.splits_state();
  PlannedParameter planned{.size = shard::parameter_size(spec, layouts, types, cuts),
                           .shard_elements = stored(layouts, cuts).shard,
                           .state_elements = stored(layouts, cuts).state,
                           .compute_elements = greatest(spec.compute),
                           .cast = {.elements = layouts.home.shape.elements(),
                                    .is_encoded = spec.encoding.has_value(),
                                    .has_tensor_scale = spec.encoding && shard::has_tensor_scale(*spec.encoding),
                                    .is_fp8_product = spec.product == quant::Format::fp8},
                           .product = spec.product};
  const std::int64_t tp_groups = static_cast<std::int64_t>(mesh.gtp) * mesh.dp;
  if (shard::exchanges_rows(spec, layouts, types, cuts)) {
    const shard::RowMessages rows = shard::messages_of(spec, layouts, mesh.gtp);
    planned.row_buffers = rows.buffers(types.model);
    if (spec.trainable) planned.reduce_total = mesh.tp * tp_groups * rows.exchanged(types.wire);
  }
  const bool overlaps = layouts.home != spec.compute;
  for (const shard::PlaneSpec& plane : shard::planes_of(spec, types)) {
    const shard::ParameterLayouts own = shard::plane_layouts(spec, plane, layouts);
    planned.stored_bytes += plane.bytes(stored(own, cuts).shard);
    if (spec.sharded && planned.row_buffers == 0)
      planned.gather_total += std::int64_t{mesh.dp} * (mesh.gtp - 1) * plane.bytes(sum(own.home));
    if (overlaps) planned.gather_total += tp_groups * plane.bytes(received_over_tp(own.home, own.compute));
    if (spec.trainable && splits) planned.publish_total += (mesh.dp - 1) * plane.bytes(stored(own, cuts).all);
  }
  if (!spec.trainable) return planned;

  for (int tp = 0; tp < mesh.tp && planned.row_buffers == 0; ++tp)
    for (int gtp = 0; gtp < mesh.gtp; ++gtp)
      planned.reduce_total += mesh.dp * shard::exchange_bytes(layouts, types, cuts, {.compute = tp, .part = gtp});
  if (overlaps || (spec.partial_gradient && mesh.tp > 1)) {
    layout::Layout parts = spec.compute;
    parts.state = layout::State::partial;
    planned.reduce_total += tp_groups * received_over_tp(parts, layouts.home) * bytes(types.accumulator);
  }
  planned.replica_total =
      std::int64_t{splits ? 1 : 2} * (mesh.dp - 1) * stored(layouts, cuts).all * bytes(types.accumulator);
  return planned;
}

std::vector<PlannedParameter> planned_parameters(const models::LlamaConfig& model, const shard::ParameterTypes& types,
                                                 const MeshDegrees& mesh, bool sequence_parallel,
                                                 const shard::RowReads& embedding, const shard::FormatPolicy& wire,
                                                 const shard::FormatPolicy& products,
                                                 const std::optional<shard::FormatPolicy>& backward) {
  std::vector<shard::ParameterSpec> specs = models::llama_parameters(model, mesh.tp, sequence_parallel && mesh.tp > 1);
  models::set_embedding_reads(specs, model, embedding);
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
