// The way of a gradient from its staging (compute layout, accumulator type) to main_grad (storage layout).
//
// For each microbatch and parameter, as docs/numerics.md says: parts on several tp ranks are added in tp-rank order in
// the accumulator type; the result is rounded once to the wire type; it travels to its owners over gtp; an owner adds
// the gtp ranks' parts in rank order to main_grad, which the first block of a step writes.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/comm/execute.h"
#include "tessera/shard/buffer_pool.h"
#include "tessera/shard/parallel.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

class Reducer {
 public:
  Reducer(const ShardedParameter& parameter, const Parallel& parallel);

  std::size_t staging_bytes() const { return staging_bytes_; }
  std::int64_t received_bytes() const { return received_bytes_; }  // from other ranks, a reduction

  // An exchange under way; `received` holds the gtp ranks' parts of this rank's shard in rank order when `done` is.
  struct Exchange {
    base::Fence done;
    base::Buffer sent, received;
  };
  // Collective over the tp and gtp groups. Takes the staging buffer over. Blocks for the tp part; the gtp part is
  // asynchronous.
  Exchange start(const ShardedParameter& parameter, const Parallel& parallel, base::Buffer staging,
                 BufferPool& pool) const;
  // Waits, adds into main_grad, gives the buffers back.
  void finish(ShardedParameter& parameter, Exchange exchange, BufferPool& pool) const;

 private:
  std::optional<comm::Redistribution> over_tp_;
  std::vector<std::int64_t> send_counts_, receive_counts_;  // over gtp, elements
  std::size_t staging_bytes_ = 0, home_elements_ = 0;
  std::int64_t received_bytes_ = 0;
};

}  // namespace tessera::shard
