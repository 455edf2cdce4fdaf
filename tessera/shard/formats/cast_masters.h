// Casts fp32 masters, which are sliced over the ranks of a group, to a number format. The cast does not depend on the
// optimizer. Every rank writes the same bytes as a single rank with the whole masters would write.
//
// A slice is a range of a weight's elements in row-major order. A slice may begin and end inside a row, a tile or a
// byte, and may be empty. Slices of several ranks may overlap; slices of replicas are equal. Together the slices
// contain every element. A weight may have no elements. All weights are cast together, with a fixed number of launches
// and one message. quantized_gather.h then gathers the data of all weights with one exchange.
//
//   DistributedCast cast(master_slices(weights, shards, Format::nvfp4), device, lane);   once
//   QuantizedGather gather(weights, shards, group, Format::nvfp4);
//
//   cast.compute_amax(); cast.reduce_amax(group); cast.cast(); gather.run(lane);         after each update
//
// To run everything once:
//
//   cast_master_weights(weights, shards, group, Format::nvfp4, lane);
//   gather_quantized(weights, shards, group, Format::nvfp4, lane);
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/lanes/lane.h"
#include "tessera/comm/communicator.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/masters/master_cast.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// The arrays for a whole weight of M x K elements in a number format on one rank. The caller owns the arrays, which
// must outlive the cast. A cast writes all scales, but only this rank's elements of the data. QuantizedGather then
// gathers the data of all ranks. If the two 4-bit elements of a byte belong to different ranks, each rank writes its
// half of the byte.
struct QuantizedWeight {
  quant::Extent matrix;  // M, K
  // data: [M, K], or [M, K / 2] for 4-bit elements. scales: [quant::scale_extent()]. tensor_amax: [1].
  quant::Quantized arrays;
  float* not_finite = nullptr;  // [1]: quant::MasterSlice::not_finite for this rank's slice; null: not written
};

// This rank's slice of a weight's master. The caller owns the memory, which must outlive the cast. Every call of the
// cast reads the current contents.
struct MasterShard {
  quant::Source master;   // the slice's elements in fp32 or bf16; may be null if the slice is empty
  quant::Slice elements;  // the slice: a range of the M x K elements
};

// Returns the slices for the constructor of DistributedCast. Throws Error for: different numbers of weights and shards;
// the format bf16, which has no scales; a null array of a weight with elements; a master that is neither fp32 nor bf16.
// The constructor checks that a slice is within its matrix.
std::vector<quant::MasterSlice> master_slices(std::span<const QuantizedWeight> weights,
                                              std::span<const MasterShard> shards, quant::Format format);
// Returns the slices of a parameter that this rank updates, one for each matrix of its compute part. A slice consists
// of rows of whole tiles, which are cast as a separate matrix (Slices::whole_tiles). The slice of a matrix is empty if
// the rank updates no row of it; the cast then writes only the number of the whole matrix, which the rank needs to read
// the gathered matrix. Matrix i of the parameter has the number first_number + i (quant::MasterSlice::number). `weight`
// owns the master. `weight` is `parameter` itself, or, if `parameter` is a backward weight, the weight to which it
// belongs. The storage of `parameter` and `weight` must not move while the cast is used. Throws Error if the parameter
// has no encoding.
std::vector<quant::MasterSlice> master_slices(ShardedParameter& parameter, const ShardedParameter& weight,
                                              std::int64_t first_number);

// The amaxes of the matrices that a rank's state contains, for a pass that raises them.
struct StateAmaxes {
  float* first = nullptr;     // amax of the matrix with the state's first element; those of later matrices follow
  std::int64_t elements = 0;  // elements of one matrix of the rank's compute part; 0: the state is in one matrix
  std::int64_t offset = 0;    // number of elements of its matrix before the state's first element
};
// `amaxes`: one number for each matrix of the parameter.
StateAmaxes state_amaxes(const ShardedParameter& parameter, float* amaxes);

// Slices that consist of whole tiles, so that only amaxes of whole matrices are reduced over the ranks. The values are
// equal on every rank, also on a rank without slices.
struct WholeTiles {
  std::int64_t numbers = 0;  // number of matrices of all weights (quant::MasterSlice::number)
  bool uses_amaxes = false;  // whether the encoding of a weight has a number for a whole matrix
};

// A cast of a fixed list of slices, which is made once and run many times. The object keeps the amaxes on `device`: 4
// bytes for each tile and 4 bytes for each matrix. Calls must come from one thread at a time. Every call enqueues work
// on `lane`, which must outlive the cast. On a GPU the calls do not wait and do not allocate, and addresses do not
// change, so a graph can contain the work. On a CPU the lane is an inline lane, and a call returns when its work is
// done. The constructor and the destructor may wait for the device.
class DistributedCast {
 public:
  // All memory of the slices is on `device`. Slices may begin and end at any position; amaxes of tiles and of whole
  // weights are reduced over the ranks. Every rank passes the same weights and encodings in the same order. Throws the
  // errors of quant::make_master_cast.
  DistributedCast(std::span<const quant::MasterSlice> slices, base::Device device, base::Lane& lane);
  // Slices of whole tiles. Ranks may pass slices of different matrices.
  DistributedCast(std::span<const quant::MasterSlice> slices, base::Device device, base::Lane& lane,
                  const WholeTiles& whole);
  // Waits for the lane, because casts in flight use this object's memory.
  ~DistributedCast();
  DistributedCast(const DistributedCast&) = delete;
  DistributedCast& operator=(const DistributedCast&) = delete;

  // Returns whether the amaxes must be reduced over the ranks. If true, call reduce_amax between compute_amax and cast.
  // The result is equal on every rank.
  bool needs_reduction() const { return reduced_ > 0; }

  // Computes the amaxes of this rank's slices. Not collective.
  void compute_amax();
  // Replaces compute_amax if every weight has one scale. Sets the amaxes to 0 and returns them. Another pass over the
  // masters on the same lane then writes the amaxes. Returns an empty span if a weight has a scale for each tile.
  std::span<float> clear_amaxes();
  // Computes the maximum of each amax over the group with one all-reduce. Sends no message if no reduction is needed,
  // or if the group has one rank. Collective over the group, whose ranks together must have all slices. The all-reduce
  // runs on the group's lane, and the cast's lane then waits for it. Errors are reported like those of the group's
  // other operations (comm/communicator.h).
  void reduce_amax(comm::Communicator& group);
  // Writes elements and scales from the current amaxes. Not collective.
  void cast();
  // Runs compute_amax, reduce_amax and cast.
  void run(comm::Communicator& group);

  // Returns the amaxes that reduce_amax reduces, for callers that reduce the amaxes themselves.
  std::span<float> shared_amaxes();
  // Returns the amaxes of quant::MasterCast: amax_count() fp32 numbers. Callers may overwrite them.
  float* amaxes() { return encoder_ ? encoder_->amaxes() : nullptr; }
  std::int64_t amax_count() const { return encoder_ ? encoder_->amax_count() : 0; }

 private:
  void make(std::span<const quant::MasterSlice> slices, base::Device device, std::int64_t numbers);

  std::unique_ptr<quant::MasterCast> encoder_;  // null without slices and amaxes
  base::Lane& lane_;
  bool is_one_tile_each_ = false;
  std::int64_t reduced_ = 0;  // number of amaxes that are reduced; they are the last of all amaxes
};

// Casts weights once, on the group's device. Collective over the group: every rank passes the same weights, also a rank
// without elements. Returns the cast, which can run again. The caller must keep the returned object until the lane's
// work is done. Throws the errors of master_slices and DistributedCast.
std::unique_ptr<DistributedCast> cast_master_weights(std::span<const QuantizedWeight> weights,
                                                     std::span<const MasterShard> shards, comm::Communicator& group,
                                                     quant::Format format, base::Lane& lane);

}  // namespace tessera::shard
