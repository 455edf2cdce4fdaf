// The way of a weight from its storage layout to its compute layout: over gtp, then over tp where compute parts
// overlap.
#pragma once
#include <cstdint>
#include <optional>

#include "tessera/base/fence.h"
#include "tessera/comm/execute.h"
#include "tessera/shard/buffer_pool.h"
#include "tessera/shard/parallel.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Planned once a parameter; the same steps every time.
class Materializer {
 public:
  Materializer(const ShardedParameter& parameter, const Parallel& parallel);

  // True when the shard is the tp-local weight already: nothing moves and no buffer is needed.
  bool is_resident() const { return !over_gtp_ && !over_tp_; }
  std::size_t bytes() const { return bytes_; }                     // of the gathered weight
  std::int64_t received_bytes() const { return received_bytes_; }  // from other ranks, a gather

  // A gather under way: `weight` is complete when `done` is; `scratch` may be given back then.
  struct Gather {
    base::Fence done;
    base::Buffer weight, scratch;
  };
  // Collective over the gtp group (and the tp group where parts overlap); asynchronous.
  Gather start(const ShardedParameter& parameter, const Parallel& parallel, BufferPool& pool) const;

 private:
  std::optional<comm::Redistribution> over_gtp_, over_tp_;
  std::size_t bytes_ = 0, home_bytes_ = 0;
  std::int64_t received_bytes_ = 0;
};

}  // namespace tessera::shard
