// Moves a weight from its storage layout to its compute layout. The first hop runs over the ranks that store parts of
// the weight. If the parts of compute ranks overlap, a second hop runs over the compute ranks. Every plane takes the
// same hops. Weights in a number format are unpacked at the end.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/comm/redistribution.h"
#include "tessera/schedule/way.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/ways/recording.h"

namespace tessera::shard {

// Runs all movements as one exchange if packing is not needed, and otherwise one after the other. Returns the fence of
// the last movement. Without movements, returns a fence that is done after the earlier work of the group's lane.
base::Fence run_all(comm::Communicator& group, const std::vector<comm::Movement>& movements);

// Moves the weight of one parameter. One object is built for each parameter and used for all its gathers. The object
// contains only data, and must live until its gathers are done.
class Materializer {
 public:
  // `way` is this rank's way of a gather (Ways::gather).
  Materializer(const ShardedParameter& parameter, const ParallelGroups& parallel, schedule::Way way);

  // Returns whether the shard already is the compute part and is not unpacked. A gather is then not needed.
  bool is_resident() const { return !moves() && unpacked_bytes_ == 0; }
  // Returns the size of the buffer into which a gather writes the planes; 0 if the planes do not move.
  std::size_t bytes() const { return bytes_; }
  // Returns the size of the buffer for the unpacked weight; 0 if the weight is not unpacked.
  std::size_t unpacked_bytes() const { return unpacked_bytes_; }
  // Unpacks the weight into `unpacked` (Unpacked). Reads the buffer of a completed gather, or the stored planes if the
  // planes do not move. Does nothing if the weight is not unpacked.
  void unpack(ShardedParameter& parameter, std::byte* gathered, std::byte* unpacked,
              const quant::Kernels& kernels) const;
  // Returns the size of the buffer for the columnwise copy of the weight; 0 if backward passes read no copy
  // (reads_columnwise).
  std::size_t columnwise_bytes() const { return columnwise_bytes_; }
  // Returns how to make the columnwise copy. `gathered` is as in unpack. Only if columnwise_bytes() is not 0.
  quant::Transposition columnwise_copy(ShardedParameter& parameter, std::byte* gathered, std::byte* copy) const;
  // Returns the columnwise copy at this address.
  quant::Quantized columnwise_at(const ShardedParameter& parameter, std::byte* copy) const;
  // Returns the byte offset of a plane in the buffer of a gather.
  std::size_t offset_of(std::size_t plane) const { return ways_[plane].offset; }

  // The communicators of one gather. `storage` contains the ranks that store the weight. `compute` contains the ranks
  // that use the weight, for the second hop. `compute` is null if no parameter has a second hop.
  struct Groups {
    comm::Communicator& storage;
    comm::Communicator* compute = nullptr;
  };
  // Enqueues a gather into `buffer`. The gather waits for `free` and for the parameter's publish event. Collective over
  // the groups. The weight is complete when the returned fence is done.
  base::Fence start(const ShardedParameter& parameter, Groups groups, std::byte* buffer, const base::Fence& free,
                    const Recording& recording = {}) const;
  // Returns whether the way has the second hop, over the ranks that use the weight.
  bool has_last_hop() const { return ways_.front().over_compute.has_value(); }
  // Appends the movements of the first hop into `buffer`. The first hops of several parameters can run as one exchange
  // if they have no second hop.
  void add_first_hops(const ShardedParameter& parameter, std::byte* buffer,
                      std::vector<comm::Movement>& movements) const;

 private:
  struct PlaneWay {
    std::optional<comm::Redistribution> over_storage, over_compute;
    // Offsets in the buffer: of the plane, and of its home part between the two hops.
    std::size_t offset = 0, between = 0;
  };

  // Returns the weight in a number format: in the buffer of a gather, or the stored planes if the planes do not move.
  quant::Quantized arrived(ShardedParameter& parameter, std::byte* gathered) const;
  bool moves() const { return ways_.front().over_storage || ways_.front().over_compute; }

  std::vector<PlaneWay> ways_;  // by plane
  std::size_t unpacked_bytes_ = 0, columnwise_bytes_ = 0;
  std::size_t bytes_ = 0;
  schedule::Way way_;
};

}  // namespace tessera::shard
