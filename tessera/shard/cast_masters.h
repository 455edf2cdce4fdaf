// Weights in a number format from fp32 masters of which the ranks of a group hold slices, for any optimizer. Every rank
// writes the bytes that one rank would write that has the whole masters.
//
// A slice is a range of a weight's elements, counted by rows. Slices may begin and end inside rows, tiles and bytes,
// may be empty, and may be the same on several ranks (replicas); together they hold every element. Weights may have no
// elements. All weights go together, whatever their number: a fixed number of launches and one message.
//
//   DistributedCast cast(master_slices(weights, shards, Format::nvfp4), device, lane);   once
//   cast.compute_amax(); cast.reduce_amax(group); cast.cast();                           after each update
//
// or both lines at once: cast_master_weights(weights, shards, group, Format::nvfp4, lane).
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

// A whole weight of M x K elements in a number format, as one rank stores it. The arrays are the caller's and outlive
// the cast. A cast writes this rank's elements of the data, and all scales. What is written of the data has to be
// brought together afterwards; a byte of two 4-bit elements of different ranks gets one half on each.
struct QuantizedWeight {
  quant::Extent matrix;     // M, K
  quant::Quantized arrays;  // data [M, K], of 4-bit elements [M, K / 2]; scales quant::scale_extent(); tensor_amax [1]
  float* not_finite = nullptr;  // [1]; quant::MasterSlice's, for this rank's slice; null: not wanted
};

// This rank's slice of a weight's master, the caller's memory, which outlives the cast. What it holds is read at each
// call.
struct MasterShard {
  quant::Source master;   // fp32 or bf16, the slice's first element first; may be null if the slice is empty
  quant::Slice elements;  // of the M x K elements
};

// The list that a DistributedCast takes. Errors: other numbers of weights and shards; the format bf16, which has no
// scales; null arrays of a weight with elements; a shard outside its matrix, or of another type than fp32 and bf16.
std::vector<quant::MasterSlice> master_slices(std::span<const QuantizedWeight> weights,
                                              std::span<const MasterShard> shards, quant::Format format);
// The part of a parameter that this rank updates: its rows of whole tiles, which are cast as a matrix by themselves
// (Slices::of_whole_tiles). The master is that of `weight`: the parameter itself, or the weight whose backward weight
// it is. The storage of both keeps its place while the cast is used. Errors: no encoding.
quant::MasterSlice master_slice(ShardedParameter& parameter, const ShardedParameter& weight);

// How the weights are cut over the ranks, the same on every rank.
enum class Slices : std::uint8_t {
  anywhere,        // amaxes of tiles and of weights are taken together over the ranks
  of_whole_tiles,  // only the amaxes of whole weights are, where an encoding has a number for the whole weight
};

// Made once; the same steps every time. Keeps the amaxes (4 bytes a tile and 4 a weight) on `device`. Calls come from
// one thread at a time and enqueue on `lane`, which outlives it: on a GPU they wait for nothing and allocate nothing,
// and all addresses stay the same, so that a graph can hold them; on a CPU the lane is an inline one, and the work is
// done when a call returns. Making and dropping it may wait for the device.
class DistributedCast {
 public:
  // All memory of the slices is of `device`. Every rank gives the same weights and encodings in the same order. Errors:
  // as quant::make_master_cast.
  DistributedCast(std::span<const quant::MasterSlice> slices, base::Device device, base::Lane& lane,
                  Slices cut = Slices::anywhere);
  // Waits for the lane: casts that are in flight use this object's memory.
  ~DistributedCast();
  DistributedCast(const DistributedCast&) = delete;
  DistributedCast& operator=(const DistributedCast&) = delete;

  // Whether the amaxes of this rank alone are not enough: then reduce_amax stands between the two other steps. The same
  // on every rank.
  bool needs_reduction() const { return reduced_ > 0; }

  // The amaxes as this rank's slices give them. Local.
  void compute_amax();
  // In its place, for weights with one scale each: sets their amaxes to 0 and returns them, so that another pass over
  // the masters takes them, on the lane. Empty if a weight has scales of tiles.
  std::span<float> clear_amaxes();
  // One MAX over the group for the amaxes of all weights; no message where none is needed, or in a group of one.
  // Collective over a group whose ranks hold all slices, on its own lane, which `lane` then waits for. Errors come as
  // those of the group's operations do (comm/communicator.h).
  void reduce_amax(comm::Communicator& group);
  // Writes elements and scales with the amaxes as they are. Local.
  void cast();
  // The three steps.
  void run(comm::Communicator& group);

  // Those that reduce_amax takes together, for who does it in another way.
  std::span<float> shared_amaxes();
  // For who brings amaxes from elsewhere: quant::MasterCast's, amax_count() numbers of fp32.
  float* amaxes() { return encoder_ ? encoder_->amaxes() : nullptr; }
  std::int64_t amax_count() const { return encoder_ ? encoder_->amax_count() : 0; }

 private:
  std::unique_ptr<quant::MasterCast> encoder_;  // null without weights
  base::Lane& lane_;
  bool is_one_tile_each_ = false;
  std::int64_t reduced_ = 0;  // amaxes that travel, the last ones
};

// Casts weights once, on the group's device. Collective over the group: every rank calls it with the same weights; a
// rank without elements too. Returns the cast, which stays alive until the lane has come to its end, and can run again.
// Errors: as master_slices and DistributedCast. Only tests call it: an optimizer uses DistributedCast.
std::unique_ptr<DistributedCast> cast_master_weights(std::span<const QuantizedWeight> weights,
                                                     std::span<const MasterShard> shards, comm::Communicator& group,
                                                     quant::Format format, base::Lane& lane);

}  // namespace tessera::shard
