// A sharded parameter on one rank: its name, logical shape, layouts, and this rank's buffers.
//
// Four layouts say everything (docs/layouts.md), over the ranks of the parameter's domain (domain.h):
//   compute  over the compute ranks: the part each needs while an operation runs; parts may overlap
//   home     over the same: every element on one of them only (whole on each for replicated parameters)
//   storage  over the ranks that store one compute rank's part: its home part cut by rows; what lasts between uses
//   state    over the replicas of one such rank: what it stores cut by rows (ZeRO-1): what a rank updates, and whose
//            optimizer state it keeps; or storage itself: every replica does the whole work
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

// The types a parameter's buffers have. accumulator: of main_grad, master and moments; wire: of the gradient
// parts that travel between the ranks that add them.
struct ParameterTypes {
  quant::DType model = quant::DType::fp32;
  quant::DType accumulator = quant::DType::fp32;
  quant::DType wire = quant::DType::fp32;

  bool operator==(const ParameterTypes&) const = default;
  std::int64_t accumulator_bytes(std::int64_t elements) const { return bytes_of(elements, accumulator); }
  std::int64_t wire_bytes(std::int64_t elements) const { return bytes_of(elements, wire); }
};

// The number format in which backward passes read a weight; bf16 without an encoding.
struct BackwardFormat {
  std::optional<quant::Encoding> encoding;
  bool operator==(const BackwardFormat&) const = default;
};

// What a model says about a parameter.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> dims;  // logical
  layout::Layout compute;          // over the compute ranks of its domain
  // Cut over the ranks that store it (matrices), or kept whole on every rank (norms).
  bool sharded = true;
  // Replicated over the compute ranks while each computes only a part of its gradient (sequence parallelism): parts are
  // added.
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
  // Backward passes read a weight in another number format, a parameter of its own (backward_weight()).
  std::optional<BackwardFormat> backward;
  int domain = 0;                   // what it is cut over: of ParallelGroups::domains
  bool is_backward_weight = false;  // backward passes read it; the cast of its weight's master writes it
  std::int64_t rows_together = 1;   // storage is cut after a multiple of so many rows; tiles may ask for more

  bool operator==(const ParameterSpec&) const = default;
};
// Whether users see an encoded weight unpacked to bf16.
bool is_unpacked(const ParameterSpec& spec);
// What backward passes read instead of a weight with `backward`: of the same shape and cut like it, with
// the name "NAME (backward)". It is not trained, and has no master.
ParameterSpec backward_weight(const ParameterSpec& spec);
// Returns the types of a parameter: its own, or else those of the run.
inline const ParameterTypes& types_of(const ParameterSpec& spec, const ParameterTypes& run) {
  return spec.types ? *spec.types : run;
}

// Whether compute ranks hold parts of one gradient, which are added before it travels further.
inline bool sums_compute(const ParameterSpec& spec, const ParameterLayouts& layouts) {
  return spec.trainable && (layouts.overlaps() || (spec.partial_gradient && spec.compute.size() > 1));
}
// Returns the type of a gradient as it is produced. sums_compute: what the function above returns.
inline quant::DType staging_type(const ParameterSpec& spec, const ParameterTypes& types, bool sums_compute) {
  return spec.produced_once && !sums_compute ? types.wire : types.accumulator;
}

// Data, and the state that steps change. The state is private: its functions are its transitions.
struct ShardedParameter : RankParts {
  ParameterSpec spec;
  ParameterTypes types;
  Place place;
  std::vector<Plane> planes;  // what travels; the first has the weight's own values
  base::Buffer master;        // local_state.size of the accumulator type; empty when it is the weight itself
  base::Buffer tensor_scale;  // the fp32 number of an encoding that belongs to the whole matrix; else empty
  base::Buffer main_grad;     // local_storage.size of the accumulator type; empty for a frozen parameter
  bool by_rows = false;       // exchanges_rows(): its rows travel by index, never the whole
  base::Buffer row_states;    // by_rows: a byte a stored row of main_grad, what is known of it (row_kernels.h)

  std::int64_t shard_elements() const { return local_storage.size; }
  std::int64_t state_elements() const { return local_state.size; }
  bool splits_state() const { return !states.empty(); }  // each replica updates its part, and all gather
  // The columns of this rank's rows where they lie one behind the other in local_storage, whole on one replica and
  // added up by one sum: then its last sum in a step can give their squares. Else 0.
  std::int64_t columns_of_sum(int replicas) const;
  // A backward weight has none: its weight's master is cast into it.
  bool has_master() const {
    return !spec.is_backward_weight && (planes.size() > 1 || planes.front().spec.type != types.accumulator);
  }
  base::Buffer& weight() { return planes.front().data; }
  const base::Buffer& weight() const { return planes.front().data; }
  // This rank's state part of each buffer, dense.
  std::byte* state_weight() { return planes.front().state_data(); }
  std::byte* state_gradient() { return main_grad.data() + types.accumulator_bytes(state_offset); }
  std::byte* state_master() { return has_master() ? master.data() : state_weight(); }

  // The stored weight. A publish makes a new version, and then says when it can be read. A gather notes the version
  // that it reads, and each consume compares the two.
  std::int64_t version() const { return version_; }
  const base::Fence& published() const { return published_; }  // done: the newest version is written
  void make_version() { ++version_; }
  void set_published(base::Fence written) { published_ = std::move(written); }

  // The gradient of a step. The first sum of a step overwrites main_grad, later sums add to it.
  struct Sum {
    bool accumulates = false;
    double* row_squares = nullptr;  // where the sum writes the squares of its rows; null: nowhere
  };
  void begin_step() { main_grad_written_ = row_squares_written_ = false; }
  // Returns how the next sum writes main_grad, and notes that it does. is_last: this step has no later sum.
  Sum next_sum(bool is_last) {
    double* const squares = is_last ? row_squares_ : nullptr;
    row_squares_written_ = squares != nullptr;
    return {std::exchange(main_grad_written_, true), squares};
  }
  bool main_grad_written() const { return main_grad_written_; }      // in this step
  bool row_squares_written() const { return row_squares_written_; }  // in this step
  // From now on the last sum of a step writes the squares of its rows there (quant/device_kernels.h), one number for
  // each row of local_storage. Null: no longer.
  void write_row_squares(double* place) { row_squares_ = place; }

  // A cast of the master to an encoding writes there whether this rank's part is finite (quant::MasterSlice). Memory of
  // the device; null: no longer.
  void write_not_finite(float* place) { not_finite_ = place; }
  float* not_finite() const { return not_finite_; }

 private:
  std::int64_t version_ = 0;
  base::Fence published_;
  bool main_grad_written_ = false, row_squares_written_ = false;
  double* row_squares_ = nullptr;
  float* not_finite_ = nullptr;
};

// The rows of a rank's state that it stands for where every element of the run counts once: in a sum over all ranks, in
// a checkpoint. Of the ranks that keep the same part one has it and the others have nothing.
layout::LocalLayout counted_part(const ShardedParameter& parameter);

}  // namespace tessera::shard
