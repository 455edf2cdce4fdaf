// The way of a weight from its storage layout to its compute layout: over the ranks that store parts of it,
// then over those that use it where their parts overlap. Every plane takes it. Weights in a number format are unpacked
// at its end.
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

// Runs them as one exchange where none needs packing, else one after the other. Returns the fence of the last; of none,
// one behind what the group's lane was given before.
base::Fence run_all(comm::Communicator& group, const std::vector<comm::Movement>& movements);

// Made ready once a parameter; the same steps every time. Data only; lives until its gathers are done.
class Materializer {
 public:
  // way: WayBytes' of a gather on this rank.
  Materializer(const ShardedParameter& parameter, const ParallelGroups& parallel, schedule::Way way);

  // True when the shard is the compute part already: nothing moves and no buffer is needed.
  bool is_resident() const { return !moves() && unpacked_bytes_ == 0; }
  // The size of the buffer that a gather fills with the planes; 0 where nothing moves.
  std::size_t bytes() const { return bytes_; }
  // The size of the buffer of the unpacked weight of an encoding; 0: the weight is used as it arrives.
  std::size_t unpacked_bytes() const { return unpacked_bytes_; }
  // Writes the unpacked weight of an encoding into `unpacked`, from the buffer of a gather that is done, or from the
  // stored planes where nothing moves; without an encoding, nothing.
  void unpack(ShardedParameter& parameter, std::byte* gathered, std::byte* unpacked,
              const quant::Kernels& kernels) const;
  // The offset of a plane in the buffer of a gather.
  std::size_t offset_of(std::size_t plane) const { return ways_[plane].offset; }

  // The groups of one gather: of the ranks that store, and for the second hop of those that use; null where no
  // parameter has that hop.
  struct Groups {
    comm::Communicator& storage;
    comm::Communicator* compute = nullptr;
  };
  // Enqueues a gather into `buffer`, after `free` and the parameter's publish. Collective. The weight is complete when
  // the fence is done.
  base::Fence start(const ShardedParameter& parameter, Groups groups, std::byte* buffer, const base::Fence& free,
                    const Recording& recording = {}) const;
  // Whether there is a hop over the ranks that use it.
  bool has_last_hop() const { return ways_.front().over_compute.has_value(); }
  // Adds what the first hop moves into `buffer`. Single hops of several parameters can run as one exchange.
  void add_first_hops(const ShardedParameter& parameter, std::byte* buffer,
                      std::vector<comm::Movement>& movements) const;

 private:
  struct PlaneWay {
    std::optional<comm::Redistribution> over_storage, over_compute;
    std::size_t offset = 0, between = 0;  // in the buffer: of the plane, and of its home part between two hops
  };

  bool moves() const { return ways_.front().over_storage || ways_.front().over_compute; }

  std::vector<PlaneWay> ways_;  // by plane
  std::size_t unpacked_bytes_ = 0;
  std::size_t bytes_ = 0;
  schedule::Way way_;
};

}  // namespace tessera::shard
