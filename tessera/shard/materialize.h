// The way of a weight from its storage layout to its compute layout. The first hop runs over the ranks that store parts
// of the weight. If the parts of compute ranks overlap, a second hop runs over these ranks. Every plane takes the same
// hops. Weights in a number format are unpacked at the end.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/comm/redistribution.h"
#include "tessera/schedule/way.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/recording.h"

namespace tessera::shard {

// Runs all movements as one exchange if they need no packing, and otherwise one after the other. Returns the fence of
// the last movement. Without movements, returns a fence that is done after the lane's earlier work.
base::Fence run_all(comm::Communicator& group, const std::vector<comm::Movement>& movements);

// Moves the weight of one parameter. One object is built for each parameter and runs the same steps every time. The
// object contains only data, and must live until its gathers are done.
class Materializer {
 public:
  // `way` is the gather way of this rank (WayBytes).
  Materializer(const ShardedParameter& parameter, const ParallelGroups& parallel, schedule::Way way);

  // Whether the shard already is the compute part, so that nothing moves and no buffer is needed.
  bool is_resident() const { return !moves() && unpacked_bytes_ == 0; }
  // The size of the buffer into which a gather writes the planes; 0 if nothing moves.
  std::size_t bytes() const { return bytes_; }
  // The size of the buffer for the unpacked weight of an encoding; 0: the weight is used without unpacking.
  std::size_t unpacked_bytes() const { return unpacked_bytes_; }
  // Unpacks the weight of an encoding into `unpacked`. Reads the buffer of a completed gather, or the stored planes if
  // nothing moves. Does nothing if the weight is not unpacked.
  void unpack(ShardedParameter& parameter, std::byte* gathered, std::byte* unpacked,
              const quant::Kernels& kernels) const;
  // Returns the byte offset of a plane in the buffer of a gather.
  std::size_t offset_of(std::size_t plane) const { return ways_[plane].offset; }

  // The groups of one gather. `storage` consists of the ranks that store the weight. `compute` consists of the ranks
  // that use the weight, for the second hop; null if no parameter has a second hop.
  struct Groups {
    comm::Communicator& storage;
    comm::Communicator* compute = nullptr;
  };
  // Enqueues a gather into `buffer`. The gather waits for `free` and for the parameter's publish. Collective over the
  // groups. The weight is complete when the returned fence is done.
  base::Fence start(const ShardedParameter& parameter, Groups groups, std::byte* buffer, const base::Fence& free,
                    const Recording& recording = {}) const;
  // Whether the way has the hop over the ranks that use the weight.
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

  bool moves() const { return ways_.front().over_storage || ways_.front().over_compute; }

  std::vector<PlaneWay> ways_;  // by plane
  std::size_t unpacked_bytes_ = 0;
  std::size_t bytes_ = 0;
  schedule::Way way_;
};

}  // namespace tessera::shard
