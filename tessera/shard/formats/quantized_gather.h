// Gathers weights that cast_masters.h has cast, so that every rank has the data of the whole weights.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/lanes/lane.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/comm/communicator.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/masters/copy_halves.h"
#include "tessera/shard/formats/cast_masters.h"

namespace tessera::shard {

// The gather of cast weights, which is made once and run after each cast. A run is one exchange for any number of
// weights. Data travels directly between the arrays of the ranks. A rank receives only elements outside its own slice,
// and replicas share the sending. If a byte has elements of different ranks, the byte is sent by each of them, and each
// receiver merges the halves. On a GPU a run does not wait and does not allocate, and addresses do not change, so a
// graph can contain the work. Calls must come from one thread at a time.
class QuantizedGather {
 public:
  // Collective over the group: one all_gather sends the slices to all ranks, and the constructor waits for it. Every
  // rank passes the same weights in the same order. The group and the arrays of the weights must outlive the object.
  // Throws Error on every rank if the slices do not contain every element of a weight, or if a slice is not within its
  // matrix. Also throws Error for different numbers of weights and shards, and for a null array of a weight with
  // elements.
  QuantizedGather(std::span<const QuantizedWeight> weights, std::span<const MasterShard> shards,
                  comm::Communicator& group, quant::Format format);
  // Waits for the group's lane, because a gather in flight uses this object's memory.
  ~QuantizedGather();
  QuantizedGather(const QuantizedGather&) = delete;
  QuantizedGather& operator=(const QuantizedGather&) = delete;

  // Gathers the data, so that the arrays of every rank contain the whole weights. Collective over the group. The
  // exchange runs on the group's lane after the earlier work of `lane`, and `lane` then waits for it. Errors are
  // reported like those of the group's other operations.
  void run(base::Lane& lane);

 private:
  // Bytes of which one half belongs to another rank. Each byte arrives in `received` and is then merged into its
  // target.
  struct SharedBytes {
    quant::Half half = quant::Half::even;
    std::vector<std::uint8_t*> targets = {};
    base::Buffer received = {};
  };

  comm::Communicator& group_;
  std::vector<comm::Send> sends_;
  std::vector<comm::Receive> receives_;
  std::vector<SharedBytes> shared_;  // one entry for each half
};

// Gathers weights once, after cast_master_weights with the same arguments. Collective over the group. Returns the
// gather, which can run again. The caller must keep the returned object until the lane's work is done. Throws the
// errors of QuantizedGather.
std::unique_ptr<QuantizedGather> gather_quantized(std::span<const QuantizedWeight> weights,
                                                  std::span<const MasterShard> shards, comm::Communicator& group,
                                                  quant::Format format, base::Lane& lane);

}  // namespace tessera::shard
