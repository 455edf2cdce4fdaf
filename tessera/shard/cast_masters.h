// Casts fp32 master weights, which are sliced over the ranks of a group, to a number format. Works with any optimizer.
// Every rank writes the same bytes as a single rank with the whole masters would write.
//
// A slice is a range of a weight's elements, in row-major order. Slices may begin and end inside rows, tiles and bytes,
// may be empty, and may be equal on several ranks (replicas). Together the slices contain every element. Weights may
// have no elements. All weights are cast together, in a fixed number of launches and with one message.
//
//   DistributedCast cast(master_slices(weights, shards, Format::nvfp4), device, lane);   once
//   cast.compute_amax(); cast.reduce_amax(group); cast.cast();                           after each update
//
// To run everything once: cast_master_weights(weights, shards, group, Format::nvfp4, lane).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/lane.h"
#include "tessera/comm/communicator.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/masters/master_cast.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// A whole weight of M x K elements in a number format, as one rank stores it. The caller owns the arrays, which must
// outlive the cast. A cast writes all scales, and this rank's elements of the data. The caller gathers the data of
// the ranks afterwards. If two 4-bit elements of one byte belong to different ranks, each rank writes its half of the
// byte.
struct QuantizedWeight {
  quant::Extent matrix;  // M, K
  // data [M, K], or [M, K / 2] for 4-bit elements; scales quant::scale_extent(); tensor_amax [1]
  quant::Quantized arrays;
  float* not_finite = nullptr;  // [1]; as in quant::MasterSlice, for this rank's slice; null: not written
};

// This rank's slice of a weight's master. The caller owns the memory, which must outlive the cast. Every call reads the
// current contents.
struct MasterShard {
  quant::Source master;   // fp32 or bf16, from the slice's first element; may be null if the slice is empty
  quant::Slice elements;  // a range of the M x K elements
};

// Returns the slices for the constructor of DistributedCast. Throws Error if the numbers of weights and shards differ,
// if the format is bf16, which has no scales, or if an array of a weight with elements is null. Throws Error if a
// master is neither fp32 nor bf16. The constructor checks that a slice is within its matrix.
std::vector<quant::MasterSlice> master_slices(std::span<const QuantizedWeight> weights,
                                              std::span<const MasterShard> shards, quant::Format format);
// Returns the slice of the part of a parameter that this rank updates. The part consists of rows of whole tiles, which
// are cast as a separate matrix (Slices::whole_tiles). `weight` owns the master: it is `parameter` itself, or the
// weight whose backward weight `parameter` is. The storage of `parameter` and `weight` must not move while the cast is
// used. Throws Error if the parameter has no encoding.
quant::MasterSlice master_slice(ShardedParameter& parameter, const ShardedParameter& weight);

// How the weights are sliced over the ranks. The value is the same on every rank.
enum class Slices : std::uint8_t {
  any_position,  // slices may divide tiles: the amaxes of tiles and of weights are reduced over the ranks
  whole_tiles,   // only the amaxes of whole weights are reduced, if an encoding has a number for the whole weight
};

// A cast that is made once and runs the same work every time. The object keeps the amaxes on `device`: 4 bytes for each
// tile and 4 for each weight. Calls must come from one thread at a time. Every call enqueues work on `lane`, which must
// outlive the cast. On a GPU the calls do not wait and do not allocate, and all addresses stay the same, so that a
// graph can contain the work. On a CPU the lane is an inline lane, and a call returns when its work is done. The
// constructor and the destructor may wait for the device.
class DistributedCast {
 public:
  // All memory of the slices is on `device`. Every rank passes the same weights and encodings in the same order. Throws
  // the errors of quant::make_master_cast.
  DistributedCast(std::span<const quant::MasterSlice> slices, base::Device device, base::Lane& lane,
                  Slices cut = Slices::any_position);
  // Waits for the lane, because casts that are in flight use this object's memory.
  ~DistributedCast();
  DistributedCast(const DistributedCast&) = delete;
  DistributedCast& operator=(const DistributedCast&) = delete;

  // Returns whether the amaxes must be reduced over the ranks. If so, reduce_amax runs between compute_amax and cast.
  // The result is the same on every rank.
  bool needs_reduction() const { return reduced_ > 0; }

  // Computes the amaxes of this rank's slices. Local.
  void compute_amax();
  // Replaces compute_amax for weights with one scale each: sets their amaxes to 0 and returns them. Another pass over
  // the masters then writes the amaxes, on the lane. Returns an empty span if a weight has scales by tile.
  std::span<float> clear_amaxes();
  // Reduces the amaxes of all weights with one all-reduce of MAX. Sends no message if no reduction is needed, or if the
  // group has one rank. Collective over a group whose ranks have all slices. The message runs on the group's lane, and
  // `lane` then waits for it. Errors are reported like those of the group's operations (comm/communicator.h).
  void reduce_amax(comm::Communicator& group);
  // Writes elements and scales from the current amaxes. Local.
  void cast();
  // Runs compute_amax, reduce_amax and cast.
  void run(comm::Communicator& group);

  // Returns the amaxes that reduce_amax reduces, for callers that reduce them in another way.
  std::span<float> shared_amaxes();
  // The amaxes of quant::MasterCast: amax_count() fp32 numbers. Callers may write amaxes from elsewhere here.
  float* amaxes() { return encoder_ ? encoder_->amaxes() : nullptr; }
  std::int64_t amax_count() const { return encoder_ ? encoder_->amax_count() : 0; }

 private:
  std::unique_ptr<quant::MasterCast> encoder_;  // null without weights
  base::Lane& lane_;
  bool is_one_tile_each_ = false;
  std::int64_t reduced_ = 0;  // number of amaxes that are reduced: the last ones of all amaxes
};

// Casts weights once, on the group's device. Collective over the group: every rank calls it with the same weights, also
// a rank without elements. Returns the cast, which can run again. The caller keeps the returned object until the lane's
// work is done. Throws the errors of master_slices and DistributedCast. Only tests call this function; an optimizer
// uses DistributedCast.
std::unique_ptr<DistributedCast> cast_master_weights(std::span<const QuantizedWeight> weights,
                                                     std::span<const MasterShard> shards, comm::Communicator& group,
                                                     quant::Format format, base::Lane& lane);

}  // namespace tessera::shard
