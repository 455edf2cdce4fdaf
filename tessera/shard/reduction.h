// The way of a gradient from its staging (compute layout, accumulator type) to main_grad (storage layout).
//
// For each microbatch and parameter, as docs/numerics.md says: parts on several tp ranks are added in tp-rank order in
// the accumulator type; the result is rounded once to the wire type; it travels to its owners over gtp; an owner adds
// the gtp ranks' parts in rank order to main_grad, which the first block of a step writes.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/comm/execute.h"
#include "tessera/shard/parallel.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Made ready once a parameter; lives until its reductions are done.
class Reducer {
 public:
  Reducer(const ShardedParameter& parameter, const Parallel& parallel);

  // The gradient at the beginning of its buffer, behind it its sum over tp where there is one.
  std::size_t staging_bytes() const { return gradient_bytes_ + summed_bytes_; }
  // What the exchange needs besides, on its lane alone: the rounded gradient and what the others send.
  std::size_t scratch_bytes() const { return rounded_bytes_ + received_size_; }
  std::int64_t received_bytes() const { return received_bytes_; }  // from other ranks, a reduction

 private:
  friend base::Fence reduce(std::span<struct Reducing> members, Parallel& parallel, const base::Fence& written,
                            std::span<std::byte> poisoned);
  base::Fence sum_over_tp(const ShardedParameter& parameter, comm::Communicator& tp, std::byte* staging,
                          const base::Fence& written) const;
  void add_messages(const ShardedParameter& parameter, const std::byte* wire, std::byte* received,
                    std::vector<comm::Send>& sends, std::vector<comm::Receive>& receives) const;
  void add_to_main_grad(ShardedParameter& parameter, const std::byte* wire, const std::byte* received,
                        bool accumulate) const;

  std::optional<comm::Redistribution> over_tp_;
  int gtp_rank_ = 0, gtp_size_ = 1;
  std::vector<std::int64_t> owned_;  // elements of the home part that each gtp rank owns
  std::size_t gradient_bytes_ = 0, summed_bytes_ = 0, rounded_bytes_ = 0, received_size_ = 0;  // aligned
  std::int64_t home_elements_ = 0, received_bytes_ = 0;
};

// One parameter's part of a reduction: where its gradient is, and bytes for its exchange.
struct Reducing {
  ShardedParameter* parameter = nullptr;
  const Reducer* reducer = nullptr;
  std::byte* staging = nullptr;
  std::byte* scratch = nullptr;
};

// Enqueues the reduction of several gradients as one exchange, after `written` (compute has written every staging).
// Collective over the tp_reduce and gtp_reduce groups. main_grad holds the sum when the fence is done; `poisoned` is
// overwritten with NaN just before. One thread: marks main_grad as written.
base::Fence reduce(std::span<Reducing> members, Parallel& parallel, const base::Fence& written,
                   std::span<std::byte> poisoned = {});

}  // namespace tessera::shard
