// The way of a weight from its storage layout to its compute layout: over gtp, then over tp where compute parts
// overlap.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "tessera/base/fence.h"
#include "tessera/comm/execute.h"
#include "tessera/shard/parallel.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/recording.h"

namespace tessera::shard {

// Made ready once a parameter; the same steps every time. Data only; lives until its gathers are done.
class Materializer {
 public:
  Materializer(const ShardedParameter& parameter, const Parallel& parallel);

  // True when the shard is the tp-local weight already: nothing moves and no buffer is needed.
  bool is_resident() const { return !over_gtp_ && !over_tp_; }
  // Of the buffer of a gather; the weight lies at its beginning.
  std::size_t bytes() const { return weight_bytes_ + scratch_bytes_; }
  std::int64_t received_bytes() const { return received_bytes_; }  // from other ranks, a gather

  // The groups of one gather: over gtp, and over tp for the second hop.
  struct Groups {
    comm::Communicator &gtp, &tp;
  };
  // Enqueues a gather into `buffer`, after `free` and the parameter's publish. Collective. The weight is complete when
  // the fence is done.
  base::Fence start(const ShardedParameter& parameter, Groups groups, std::byte* buffer, const base::Fence& free,
                    const Recording& recording = {}) const;
  // Only the hop over gtp, with nothing to pack: such gathers can be one exchange.
  const comm::Redistribution* single_hop() const { return over_gtp_ && !over_tp_ ? &*over_gtp_ : nullptr; }

 private:
  std::optional<comm::Redistribution> over_gtp_, over_tp_;
  std::size_t weight_bytes_ = 0, scratch_bytes_ = 0;  // aligned; scratch: the home part between the two hops
  std::int64_t received_bytes_ = 0;
};

}  // namespace tessera::shard
