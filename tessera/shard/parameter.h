// A sharded parameter on one rank: its name, logical shape, layouts, and this rank's buffers.
//
// Four layouts describe where the weight is (docs/layouts.md). The layouts are over the ranks of the parameter's domain
// (domain.h).
//   compute  over the compute ranks: the part that each rank needs while an operation runs; parts may overlap
//   home     over the compute ranks: each element on one rank (replicated parameters are whole on every rank)
//   storage  over the ranks that store one compute rank's part: the rows of the home part that each rank keeps between
//   uses state    over the replicas of one storing rank: the rows of the shard that each replica updates, with their
//   optimizer state (ZeRO-1); without ZeRO-1 equal to storage: every replica updates the whole shard
// These layouts count the elements of the weight. Each plane (plane.h) has four layouts of its own, which count tiles.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/base/fence.h"
#include "tessera/layout/layout.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/shard/domain.h"
#include "tessera/shard/lookup.h"
#include "tessera/shard/plane.h"

namespace tessera::shard {

// The types of a parameter's buffers. `accumulator` is the type of main_grad, master and moments. `wire` is the type of
// the gradient parts that travel between the ranks that add them.
struct ParameterTypes {
  quant::DType model = quant::DType::fp32;
  quant::DType accumulator = quant::DType::fp32;
  quant::DType wire = quant::DType::fp32;

  bool operator==(const ParameterTypes&) const = default;
  std::int64_t accumulator_bytes(std::int64_t elements) const { return bytes_of(elements, accumulator); }
  std::int64_t wire_bytes(std::int64_t elements) const { return bytes_of(elements, wire); }
};

// The number format in which backward passes read a weight. Without an encoding, backward passes read bf16.
struct BackwardFormat {
  std::optional<quant::Encoding> encoding;
  bool operator==(const BackwardFormat&) const = default;
};

// The properties of a parameter that a model defines.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> dims;  // logical
  layout::Layout compute;          // over the compute ranks of its domain
  // True: each rank stores a part (matrices). False: every rank stores the whole (norms).
  bool sharded = true;
  // The parameter is replicated over the compute ranks, but each rank computes only a part of its gradient (sequence
  // parallelism). The parts are added.
  bool partial_gradient = false;
  bool trainable = true;
  // One product computes the whole gradient of a microbatch. Nothing is added to the gradient before it is rounded to
  // the wire type, so the product may write rounded values.
  bool produced_once = false;
  bool decay = true;                // weight decay applies
  double initial_deviation = 0.02;  // normal(0, deviation); 0: filled with initial_value
  double initial_value = 0;
  RowReads reads;
  std::optional<ParameterTypes> types;  // absent: those of the run
  // The weight and its gradient have the run's accumulator type everywhere (a router is fp32 in a bf16 model).
  bool is_wide = false;
  // False: number formats do not apply to the parameter, and a rule that matches it is refused.
  bool takes_formats = true;
  // The arrays that are stored and sent; empty: one plane of the model's type. The first plane has one element for each
  // element of the weight, and contains its values or its data.
  std::vector<PlaneSpec> planes;
  // The number format in which a matrix of a bf16 model is stored and sent, instead of `planes`. The master is fp32. If
  // is_unpacked(), users read the weight unpacked to bf16 (encoded.h).
  std::optional<quant::Encoding> encoding;
  // The number format of the weight's products. Products in the format of the encoding read the planes directly.
  quant::Format product = quant::Format::bf16;
  bool looked_up = false;  // rows are also read by index, in bf16
  // Set if backward passes read the weight in another number format, as a separate parameter (backward_weight()).
  std::optional<BackwardFormat> backward;
  int domain = 0;                   // number of its domain in ParallelGroups::domains
  bool is_backward_weight = false;  // backward passes read it; the cast of its weight's master writes it
  std::int64_t rows_together =
      1;  // storage is cut after a multiple of this number of rows; tiles may require a larger multiple

  bool operator==(const ParameterSpec&) const = default;
};
// Returns whether users read an encoded weight unpacked to bf16.
bool is_unpacked(const ParameterSpec& spec);
// Returns the parameter that backward passes read instead of a weight with `backward`. The backward weight has the same
// shape and the same sharding, and the name "NAME (backward)". A backward weight is not trained and has no master.
ParameterSpec backward_weight(const ParameterSpec& spec);
// Returns the types of a parameter: its own, or else those of the run.
inline ParameterTypes types_of(const ParameterSpec& spec, const ParameterTypes& run) {
  if (spec.is_wide) return {.model = run.accumulator, .accumulator = run.accumulator, .wire = run.accumulator};
  return spec.types ? *spec.types : run;
}

// Returns whether compute ranks hold parts of one gradient, which are added before the gradient travels further.
inline bool sums_compute(const ParameterSpec& spec, const ParameterLayouts& layouts) {
  return spec.trainable && (layouts.overlaps() || (spec.partial_gradient && spec.compute.size() > 1));
}
// Returns the type of a gradient as it is produced. `sums_compute` is the result of the function above.
inline quant::DType staging_type(const ParameterSpec& spec, const ParameterTypes& types, bool sums_compute) {
  return spec.produced_once && !sums_compute ? types.wire : types.accumulator;
}

// Data, and the state that steps change. The state is private: only its functions change it.
struct ShardedParameter : RankParts {
  ParameterSpec spec;
  ParameterTypes types;
  Place place;
  std::vector<Plane> planes;  // the arrays that travel; the first contains the weight's own values
  base::Buffer master;  // local_state.size elements of the accumulator type; empty if the weight is its own master
  base::Buffer tensor_scale;  // fp32: the number of the whole matrix in an encoding; else empty
  base::Buffer main_grad;     // local_storage.size elements of the accumulator type; empty for a frozen parameter
  bool by_rows = false;       // exchanges_rows(): rows travel by index, and the table is never gathered
  base::Buffer row_states;    // if by_rows: the state of each stored row of main_grad, a byte each (row_kernels.h)

  std::int64_t shard_elements() const { return local_storage.size; }
  std::int64_t state_elements() const { return local_state.size; }
  bool splits_state() const {
    return !states.empty();
  }  // whether each replica updates only its part, after which the replicas gather all parts
  // Returns the number of columns of this rank's rows if the last sum of a step can also write the squares of the rows.
  // The sum can write the squares if one sum finishes all rows: the rows are contiguous in local_storage, and there is
  // one replica. Otherwise returns 0.
  std::int64_t columns_of_sum(int replicas) const;
  // A backward weight has no master: the cast of its weight's master writes it.
  bool has_master() const {
    return !spec.is_backward_weight && (planes.size() > 1 || planes.front().spec.type != types.accumulator);
  }
  base::Buffer& weight() { return planes.front().data; }
  const base::Buffer& weight() const { return planes.front().data; }
  // The addresses of this rank's state part in each buffer. The part is dense.
  std::byte* state_weight() { return planes.front().state_data(); }
  std::byte* state_gradient() { return main_grad.data() + types.accumulator_bytes(state_offset); }
  std::byte* state_master() { return has_master() ? master.data() : state_weight(); }

  // The version of the stored weight. A publish makes a new version and sets the fence after which this version can be
  // read. A gather stores the version that it reads. Each consume compares the two versions.
  std::int64_t version() const { return version_; }
  const base::Fence& published() const { return published_; }  // done when the newest version is written
  void make_version() { ++version_; }
  void set_published(base::Fence written) { published_ = std::move(written); }

  // The gradient of a step. The first sum of a step overwrites main_grad; later sums add to it.
  struct Sum {
    bool accumulates = false;
    double* row_squares = nullptr;  // the sum writes the squares of its rows here; null: not written
  };
  void begin_step() { main_grad_written_ = row_squares_written_ = false; }
  // Returns how the next sum writes main_grad, and records that this sum was taken. is_last: the step has no later sum.
  Sum next_sum(bool is_last) {
    double* const squares = is_last ? row_squares_ : nullptr;
    row_squares_written_ = squares != nullptr;
    return {std::exchange(main_grad_written_, true), squares};
  }
  bool main_grad_written() const { return main_grad_written_; }      // in this step
  bool row_squares_written() const { return row_squares_written_; }  // in this step
  // From now on the last sum of a step writes the squares of its rows to `place` (quant/device_kernels.h): one number
  // for each row of local_storage. Null: stops writing them.
  void write_row_squares(double* place) { row_squares_ = place; }

  // From now on a cast of the master to an encoding writes to `place` whether this rank's part is finite
  // (quant::MasterSlice). `place` is memory of the device. Null: stops writing it.
  void write_not_finite(float* place) { not_finite_ = place; }
  float* not_finite() const { return not_finite_; }

 private:
  std::int64_t version_ = 0;
  base::Fence published_;
  bool main_grad_written_ = false, row_squares_written_ = false;
  double* row_squares_ = nullptr;
  float* not_finite_ = nullptr;
};

// Returns the rows of this rank's state that the rank contributes to a sum over all ranks or to a checkpoint, in which
// each element of the run counts once. If several ranks keep the same part, one of them contributes it, and the result
// is empty on the others.
layout::LocalLayout counted_part(const ShardedParameter& parameter);

}  // namespace tessera::shard
