// A sharded parameter: data only. Its name, logical shape, layouts, and this rank's buffers.
//
// Four layouts say everything (docs/layouts.md):
//   compute  over the tp ranks: the part each needs while an operation runs; parts may overlap
//   home     over the tp ranks: the same with every element on one tp rank only (whole on each for replicated
//            parameters)
//   storage  over tp x gtp ranks (rank tp + T * gtp): home cut by rows over gtp; what lasts between uses
//   state    over tp x gtp x dp ranks (rank tp + T * (gtp + G * dp)) storage cut by rows over dp (ZeRO-1): what a rank
//            updates, and keeps the optimizer's state of; or, over tp x gtp ranks, storage itself: every replica does
//            the whole work
// These layouts count the elements of the weight. Each plane (plane.h) has four layouts of its own, which count tiles.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/base/fence.h"
#include "tessera/layout/layout.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/format.h"
#include "tessera/shard/lookup.h"
#include "tessera/shard/plane.h"

namespace tessera::shard {

// The types a parameter's buffers have. accumulator: of main_grad, master and moments; wire: of the gradient
// parts that travel between gtp ranks.
struct ParameterTypes {
  quant::DType model = quant::DType::fp32;
  quant::DType accumulator = quant::DType::fp32;
  quant::DType wire = quant::DType::fp32;

  std::int64_t accumulator_bytes(std::int64_t elements) const { return bytes_of(elements, accumulator); }
  std::int64_t wire_bytes(std::int64_t elements) const { return bytes_of(elements, wire); }
};

// The number format in which backward passes read a weight; bf16 without an encoding.
struct BackwardFormat {
  std::optional<quant::Encoding> encoding;
};

// What a model says about a parameter.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> dims;  // logical
  layout::Layout compute;          // over the tp ranks
  // Cut over gtp (matrices), or kept whole on every rank (norms).
  bool sharded = true;
  // Replicated over tp while each tp rank computes only a part of its gradient (sequence parallelism): parts are added.
  bool partial_gradient = false;
  bool trainable = true;
  // One product a microbatch makes all of its gradient: nothing is added to it before it is rounded to the wire type,
  // so the product may write it rounded.
  bool produced_once = false;
  bool decay = true;                // weight decay applies
  double initial_deviation = 0.02;  // normal(0, deviation); 0: filled with initial_value
  double initial_value = 0;
  RowReads reads;
  std::optional<ParameterTypes> types;  // absent: the run's (a router may be fp32 in a bf16 model)
  // What is stored and travels; empty: one plane of the model's type. The first plane has an element for each of the
  // weight's, and holds its values or its data.
  std::vector<PlaneSpec> planes;
  // The number format in which a matrix of a bf16 model is stored and sent, instead of `planes`; its master is fp32.
  // Who uses the weight sees it unpacked to bf16 (encoded.h).
  std::optional<quant::Encoding> encoding;
  // The number format of its products. Who multiplies in the encoding's own format reads the planes as they are.
  quant::Format product = quant::Format::bf16;
  bool looked_up = false;  // its rows are read by index too, in bf16
  // Backward passes read a copy in another number format, a parameter of its own (backward_copy).
  std::optional<BackwardFormat> backward;
  bool is_copy = false;            // it is such a copy, which is written by the cast of its weight's master
  std::int64_t rows_together = 1;  // storage is cut after a multiple of so many rows; tiles may ask for more
};
// Whether users see an encoded weight unpacked to bf16.
bool is_unpacked(const ParameterSpec& spec);
// The copy of a weight with `backward` that backward passes read: of the same shape and cut like it, with the name
// "NAME (backward)". It is not trained, and has no master.
ParameterSpec backward_copy(const ParameterSpec& spec);
// Returns the types of a parameter: its own, or else those of the run.
inline const ParameterTypes& types_of(const ParameterSpec& spec, const ParameterTypes& run) {
  return spec.types ? *spec.types : run;
}
// Returns the planes of a parameter: its own, those of its encoding, or else one of the model's type.
std::vector<PlaneSpec> planes_of(const ParameterSpec& spec, const ParameterTypes& types);

// Of a gradient as it is produced. sums_tp: tp ranks hold parts that are added first.
inline quant::DType staging_type(const ParameterSpec& spec, const ParameterTypes& types, bool sums_tp) {
  return spec.produced_once && !sums_tp ? types.wire : types.accumulator;
}

struct ShardedParameter : RankParts {
  ParameterSpec spec;
  ParameterTypes types;
  layout::Layout home, storage, state;
  std::vector<Plane> planes;  // what travels; the first has the weight's own values
  base::Buffer master;        // local_state.size of the accumulator type; empty when it is the weight itself
  base::Buffer tensor_scale;  // the fp32 number of an encoding that belongs to the whole matrix; else empty
  base::Buffer main_grad;     // local_storage.size of the accumulator type; empty for a frozen parameter
  std::int64_t version = 0;
  base::Fence published;           // the newest version is written when this is done
  bool main_grad_written = false;  // in this step: the first produced block writes, later ones add
  // Where the step's last sum of this rank's part leaves the squares of its rows (quant/device_kernels.h), if somebody
  // asks for them by giving a place, local_storage's rows long; whether it has done so in this step.
  double* row_squares = nullptr;
  bool row_squares_written = false;

  bool by_rows = false;     // exchanges_rows(): its rows travel by index, never the whole
  base::Buffer row_states;  // by_rows: a byte a stored row of main_grad, what is known of it (row_kernels.h)

  std::int64_t shard_elements() const { return local_storage.size; }
  std::int64_t state_elements() const { return local_state.size; }
  bool splits_state() const { return !states.empty(); }  // each replica updates its part, and all gather
  // The columns of this rank's rows where they lie one behind the other in local_storage, whole on one replica and
  // added up by one sum: then its last sum in a step can give their squares. Else 0.
  std::int64_t columns_of_sum(int dp) const;
  // A copy has none: its weight's master is cast into it.
  bool has_master() const {
    return !spec.is_copy && (planes.size() > 1 || planes.front().spec.type != types.accumulator);
  }
  base::Buffer& weight() { return planes.front().data; }
  const base::Buffer& weight() const { return planes.front().data; }
  // This rank's state part of each buffer, dense.
  std::byte* state_weight() { return planes.front().state_data(); }
  std::byte* state_gradient() { return main_grad.data() + types.accumulator_bytes(state_offset); }
  std::byte* state_master() { return has_master() ? master.data() : state_weight(); }
};

// Into how many parts a tp rank's part of a parameter is cut.
struct Cuts {
  int gtp = 1, dp = 1;
  bool zero = false;  // the optimizer's state over dp
  int node = 1;       // consecutive gtp ranks whose gradients are added first (reduction_tree.h)
  // Whether a replica's ranks hold the optimizer's state only in part.
  bool splits_state() const { return zero && dp > 1; }
};

// Errors: a layout of another shape than dims, or one that leaves an element out; too many planes, a tile below 1 x 1,
// a first plane by tile. Errors of an encoding: check_encoding (encoded.h).
ParameterLayouts layouts_of(const ParameterSpec& spec, const Cuts& cuts);
// Returns the layouts of a plane. A tp rank's part has the grid of tiles; storage and state are cut between tiles.
// Errors: a plane by tile of a parameter whose parts overlap between tp ranks.
PlaneLayouts plane_layouts(const ParameterSpec& spec, const PlaneSpec& plane, const ParameterLayouts& layouts,
                           const Cuts& cuts);

// Builds layouts and buffers (zero) for the rank at (tp_rank, gtp_rank, dp_rank). Errors: a compute layout whose size
// is not the tp degree, whose local parts are no dense matrices, or that leaves an element out.
struct Place {
  int tp_rank = 0, gtp_rank = 0, dp_rank = 0;
  base::Device device = {};
};
ShardedParameter make_parameter(ParameterSpec spec, const ParameterTypes& types, const Cuts& cuts, const Place& place);

// The rows of a rank's state that it stands for where every element of the run counts once: in a sum over all ranks, in
// a checkpoint. Of the ranks that keep the same part, the lowest has it and the others have nothing. `rank`: in the
// world, whose further replicas keep what the ranks of `state` do.
layout::LocalLayout counted_part(const ShardedParameter& parameter, int rank);

}  // namespace tessera::shard
