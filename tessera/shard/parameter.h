// A sharded parameter on one rank: its name, logical shape, layouts, and this rank's buffers.
//
// Four layouts describe where the elements of the weight are stored (docs/layouts.md). The layouts are over the ranks
// of the parameter's domain (domain.h).
//   compute  The part that each compute rank needs while an operation runs. Parts may overlap.
//   home     The compute layout without overlaps: each element is on one compute rank. A replicated parameter is whole
//            on every compute rank.
//   storage  The rows of a home part that each rank keeps between uses. The layout is over the ranks that store one
//            compute rank's home part. In a replica in which compute groups lack ranks, it is over all ranks of the
//            replica (unequal/replica_layouts.h).
//   state    The rows of a shard that each replica updates, with their optimizer state (ZeRO-1). The layout is over the
//            replicas. Without ZeRO-1 every replica updates its whole shard, and state equals storage.
// These layouts count the elements of the weight. Each plane (plane.h) also has four layouts, which count tiles.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/layout/layout.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/stack_kernels.h"
#include "tessera/shard/domain.h"
#include "tessera/shard/plane.h"
#include "tessera/shard/ways/lookup.h"

namespace tessera::shard {

// The types of a parameter's buffers. `model` is the type of the weight. `accumulator` is the type of main_grad, master
// and moments. `wire` is the type of gradients that ranks send to each other.
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
  std::vector<std::int64_t> dims;  // logical shape
  layout::Layout compute;          // compute layout over the ranks of this rank's compute group
  // The compute layout for each shape of a compute group (ComputeGroup::shapes). Empty if all groups are full.
  std::map<Slots, layout::Layout> compute_by_slots = {};
  // True: each rank stores a part of the parameter (matrices). False: every rank stores the whole parameter (norms).
  bool sharded = true;
  // True: the parameter is replicated over the compute ranks, but each rank computes only a term of the gradient
  // (sequence parallelism). The terms are added.
  bool partial_gradient = false;
  bool trainable = true;
  // True: one product computes the whole gradient of a microbatch. No value is added before the gradient is rounded to
  // the wire type, so the product may write rounded values.
  bool produced_once = false;
  bool decay = true;  // whether weight decay applies
  // The matrices of the parameter in a Hugging Face folder, as named blocks of rows that follow each other: for example
  // q, k and v. In a stack, these are the blocks of each matrix of the stack. Empty: one block (matrix_blocks.h).
  std::vector<layout::Block> blocks = {};
  // True: a matrix between the embedding and the output layer, routers excluded. Such parameters have the rule of
  // matrices by default.
  bool is_hidden_matrix = false;
  double initial_deviation = 0.02;  // standard deviation of normal initial values; 0: all elements are initial_value
  double initial_value = 0;
  RowReads reads;
  std::optional<ParameterTypes> types;  // absent: the types of the run
  // True: the weight and its gradient always have the run's accumulator type. For example, a router is fp32 in a bf16
  // model.
  bool is_wide = false;
  // False: number formats do not apply to the parameter, and a rule that matches its name is an error.
  bool takes_formats = true;
  // The planes that are stored and sent. Empty: one plane of the model's type. The first plane has one element for each
  // element of the weight, and contains the weight's values or its data.
  std::vector<PlaneSpec> planes;
  // The number format in which a matrix of a bf16 model is stored and sent. If set, it replaces `planes`. The master is
  // fp32. If is_unpacked() is true, layers read the weight unpacked (Unpacked).
  std::optional<quant::Encoding> encoding;
  // The number format of the weight's products. If it is the format of `encoding`, products do not quantize the weight.
  quant::Format product = quant::Format::bf16;
  quant::StackKernels kernels;  // of a stack: how a GPU multiplies it. Equal on all ranks
  bool looked_up = false;       // whether a layer also reads rows of the matrix by index, in bf16
  // Set if backward passes read the weight in another number format, from a separate parameter (backward_weight()).
  std::optional<BackwardFormat> backward;
  int domain = 0;  // index of the parameter's domain in ParallelGroups::domains
  // True: this parameter is a backward weight. Its values are cast from the master of the weight to which it belongs.
  bool is_backward_weight = false;
  // A rank's stored rows begin at a multiple of this number. Tiles may require a larger multiple.
  std::int64_t rows_together = 1;

  bool operator==(const ParameterSpec&) const = default;
};
// Returns the number of matrices of a parameter. Three dims are a stack of dims[0] matrices; row r of the logical
// matrix belongs to matrix r / dims[1].
inline std::int64_t matrices_of(const ParameterSpec& spec) {
  return spec.dims.size() == 3 ? spec.dims.front() : 1;
}
// The content of the unpacked stage of a weight in a number format, which has the type of the model:
//   nothing  layers read the planes
//   values   the values of the weight, rounded to bf16
//   decoded  the decoded values of its codes (quant/formats/decoded.h), for products of these values. A stack whose
//            fprop multiplies codes on a GPU is not unpacked; other products then decode it at each use
enum class Unpacked : std::uint8_t { nothing, values, decoded };
Unpacked unpacked_to(const ParameterSpec& spec);
// Returns whether layers read the weight, which is stored in a number format, unpacked.
inline bool is_unpacked(const ParameterSpec& spec) {
  return unpacked_to(spec) != Unpacked::nothing;
}
// Returns whether backward passes read a columnwise copy of the weight (quant/formats/columnwise.h): products read its
// codes, and they are native.
bool reads_columnwise(const ParameterSpec& spec);
// Returns whether each product quantizes a weight that the product reads in another format. The product may be one of
// a forward or of a backward pass.
bool is_quantized_at_use(const ParameterSpec& spec);
// Returns the backward weight of a weight whose `backward` is set. The backward weight has the shape and the sharding
// of the weight, and the name "NAME (backward)". A backward weight is not trained and has no master.
ParameterSpec backward_weight(const ParameterSpec& spec);
// Returns spec.types if set, otherwise the types of the run.
inline ParameterTypes types_of(const ParameterSpec& spec, const ParameterTypes& run) {
  if (spec.is_wide) return {.model = run.accumulator, .accumulator = run.accumulator, .wire = run.accumulator};
  return spec.types ? *spec.types : run;
}

// Returns whether several compute ranks hold terms of one gradient. These terms are added in the first hop of the
// reduction.
inline bool sums_compute(const ParameterSpec& spec, const ParameterLayouts& layouts) {
  return spec.trainable && (layouts.overlaps() || (spec.partial_gradient && layouts.slots > 1));
}
// Returns the type of a gradient as it is produced. `sums_compute` is the result of the function above.
inline quant::DType staging_type(const ParameterSpec& spec, const ParameterTypes& types, bool sums_compute) {
  return spec.produced_once && !sums_compute ? types.wire : types.accumulator;
}

// A parameter on one rank: its description, its buffers, and state that steps change. The runtime calls begin_step,
// make_version and set_published, reduce() calls next_sum, and train/ calls write_row_squares and write_not_finite.
struct ShardedParameter : RankParts {
  ParameterSpec spec;
  ParameterTypes types;
  Place place;
  std::vector<Plane> planes;  // the planes that gathers send; the first plane contains the weight's values or data
  // local_state.size elements of the accumulator type; empty if the weight is its own master. If has_split_master, the
  // low halves of the masters, of 16 bits each; the weight is the rest of the masters (ops/optimizer/split_master.h).
  base::Buffer master;
  bool has_split_master = false;  // result of splits_master()
  // One fp32 number for each matrix of local_compute, if the encoding has a number for a whole matrix; else empty.
  base::Buffer tensor_scale;
  // local_storage.size elements of gradient_type(); empty for a frozen parameter. Written by reduce(), Replicas::sum,
  // and RunningProgram::end_step (zeros, if no microbatch produced a gradient). If written_by_layers, layers write it.
  base::Buffer main_grad;
  bool written_by_layers = false;  // result of writes_main_grad()
  bool by_rows = false;            // result of exchanges_rows(); true: the table exchanges rows and is never gathered
  bool row_gradients = false;      // result of has_row_gradients()
  base::Buffer row_states;  // if row_gradients: one byte for the state of each stored row of main_grad (row_kernels.h)

  std::int64_t shard_elements() const { return local_storage.size; }
  std::int64_t state_elements() const { return local_state.size; }
  // Returns whether each replica updates only a part of the shard. The replicas then exchange the updated parts.
  bool splits_state() const { return !states.empty(); }
  // Returns the number of columns if a step's last sum can also write each row's sum of squares, otherwise 0. One sum
  // must complete whole rows: the rows are contiguous in local_storage, and there is one replica.
  std::int64_t columns_of_sum(int replicas) const;
  // Returns row_states if a row of main_grad whose state is 0 contains only zeros, otherwise null. Sums over replicas
  // do not write the states.
  const std::uint8_t* states_of_rows(int replicas) const;
  // Returns whether the parameter has a separate master. A backward weight has no master; its values are cast from the
  // master of the weight to which it belongs.
  bool has_master() const {
    return !spec.is_backward_weight && (planes.size() > 1 || planes.front().spec.type != types.accumulator);
  }
  base::Buffer& weight() { return planes.front().data; }
  const base::Buffer& weight() const { return planes.front().data; }
  // Return the addresses of this rank's state part in each buffer. The part is dense.
  std::byte* state_weight() { return planes.front().state_data(); }
  std::byte* state_gradient() { return main_grad.data() + bytes_of(state_offset, gradient_type()); }
  quant::DType gradient_type() const { return written_by_layers ? types.wire : types.accumulator; }
  // The masters, or the low halves of split masters.
  std::byte* state_master() { return has_master() ? master.data() : state_weight(); }

  // The version number of the stored weight. A publish event makes a new version and sets the fence after which this
  // version can be read. A gather records the version that it reads. Each consume event compares the recorded version
  // with the stored version.
  std::int64_t version() const { return version_; }
  const base::Fence& published() const { return published_; }  // done when the newest version is written
  void make_version() { ++version_; }
  void set_published(base::Fence written) { published_ = std::move(written); }

  // How one sum writes main_grad. The first sum of a step overwrites main_grad; later sums add to it.
  struct Sum {
    bool accumulates = false;
    double* row_squares = nullptr;  // receives the sum of squares of each row; null: not written
  };
  void begin_step() { main_grad_written_ = row_squares_written_ = false; }
  // Returns how the next sum writes main_grad, and records that the caller does this sum. `is_last`: the step has no
  // later sum. If written_by_layers, there is no sum. The runtime then calls next_sum when layers have
  // written main_grad.
  Sum next_sum(bool is_last) {
    double* const squares = is_last && !written_by_layers ? row_squares_ : nullptr;
    row_squares_written_ = squares != nullptr;
    return {std::exchange(main_grad_written_, true), squares};
  }
  bool main_grad_written() const { return main_grad_written_; }  // whether a sum of this step has written main_grad
  // Returns whether a sum of this step has written the sums of squares.
  bool row_squares_written() const { return row_squares_written_; }
  // From now on, each step's last sum writes the sum of squares of each row of local_storage to `place`
  // (quant/device_kernels.h). Null: sums of squares are no longer written.
  void write_row_squares(double* place) { row_squares_ = place; }

  // After this call, each cast of the master to an encoding writes to `place` whether this rank's part is finite
  // (quant::MasterSlice::not_finite). `place` is memory of the device. Null: the value is no longer written.
  void write_not_finite(float* place) { not_finite_ = place; }
  float* not_finite() const { return not_finite_; }

 private:
  std::int64_t version_ = 0;
  base::Fence published_;
  bool main_grad_written_ = false, row_squares_written_ = false;
  double* row_squares_ = nullptr;
  float* not_finite_ = nullptr;
};

// Returns the part of this rank's state that the rank contributes to a sum over all ranks or to a checkpoint. Each
// element of the parameter is contributed by exactly one rank. If several ranks keep equal parts, the result is empty
// on all of them except one.
layout::LocalLayout counted_part(const ShardedParameter& parameter);

}  // namespace tessera::shard
