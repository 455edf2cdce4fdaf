// One call of a collective as data: what the front end hands to a backend, and what peers compare.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

enum class OperationKind { all_gather, all_to_all, reduce_scatter, all_reduce, broadcast, barrier, exchange };
std::string_view name_of(OperationKind kind);
std::string_view name_of(ReduceOp op);

struct Operation {
  OperationKind kind = OperationKind::barrier;
  quant::DType type = quant::DType::u8;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
  const void* send = nullptr;
  void* recv = nullptr;
  // Elements by group rank. all_gather: recv_counts; reduce_scatter: send_counts; all_to_all: both; all_reduce and
  // broadcast: recv_counts holds the one count.
  std::vector<std::int64_t> send_counts, recv_counts;
  std::vector<Send> sends;  // exchange only
  std::vector<Receive> receives;
};

// Who a communicator is.
struct GroupIdentity {
  std::string name;          // "gtp[0,2]"
  int rank = 0;              // in the group
  std::vector<int> members;  // world ranks
  int size() const { return static_cast<int>(members.size()); }
  int world_rank() const { return members[static_cast<std::size_t>(rank)]; }
  // visit(group rank) for every other member, from the next one on.
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    for (int step = 1; step < size(); ++step) visit((rank + step) % size());
  }
};

// Elements before rank `index` in a buffer with these counts.
std::int64_t offset_of(std::span<const std::int64_t> counts, int index);
// Bytes of `count` elements.
std::size_t bytes_of(std::int64_t count, quant::DType type);
// `data` moved on by `count` elements.
const std::byte* advance(const void* data, std::int64_t count, quant::DType type);
std::byte* advance(void* data, std::int64_t count, quant::DType type);

// Throws Error (group, operation, what was expected, what was given) when the call cannot be right whatever the peers
// do.
void check_arguments(const Operation& operation, const GroupIdentity& group);

// "all_gather(fp32, counts [3, 4])"
std::string describe(const Operation& operation);

// Bytes that `group`'s rank receives from the others in its `operation`, in the fewest that the collective needs: every
// part once; all_reduce as reduce_scatter and all_gather.
std::int64_t received_bytes(const Operation& operation, const GroupIdentity& group);
// Returns how many bytes each of `ranks` ranks receives in an all_reduce of `bytes`, rounded down. A reduce_scatter and
// an all_gather bring it (ranks - 1) / ranks of the bytes each.
std::int64_t all_reduce_received(std::int64_t bytes, std::int64_t ranks);

// What does not fit between the calls of two members `a` and `b` (group ranks), naming both by world rank; empty when
// all does.
std::string mismatch(const GroupIdentity& group, int a, const Operation& call_a, int b, const Operation& call_b);

// An operation without its addresses, as numbers that can be sent to a peer, and back.
std::vector<std::int64_t> to_numbers(const Operation& operation);
Operation from_numbers(std::span<const std::int64_t> numbers);

}  // namespace tessera::comm
