// One call of a collective as data. The communicator passes the call to a backend, and peers compare their calls.
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
  // Numbers of elements by group rank. An all_gather uses recv_counts, a reduce_scatter uses send_counts, and an
  // all_to_all uses both. For all_reduce and broadcast, recv_counts contains a single count.
  std::vector<std::int64_t> send_counts, recv_counts;
  std::vector<Send> sends;  // exchange only
  std::vector<Receive> receives;
};

// The identity of a communicator: its group, and this rank's number in the group.
struct GroupIdentity {
  std::string name;          // "gtp[0,2]"
  int rank = 0;              // in the group
  std::vector<int> members;  // world ranks
  int size() const { return static_cast<int>(members.size()); }
  int world_rank() const { return members[static_cast<std::size_t>(rank)]; }
  // Calls visit(group rank) for every other member, starting with the next rank.
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    for (int step = 1; step < size(); ++step) visit((rank + step) % size());
  }
};

// Returns the number of elements before the part of rank `index`. The buffer contains the parts of all ranks in order;
// `counts` are their sizes.
std::int64_t offset_of(std::span<const std::int64_t> counts, int index);
std::size_t bytes_of(std::int64_t count, quant::DType type);
// Returns the address `count` elements after `data`.
const std::byte* advance(const void* data, std::int64_t count, quant::DType type);
std::byte* advance(void* data, std::int64_t count, quant::DType type);

// Throws Error if the arguments are invalid. Does not consider the calls of peers. The message contains the group, the
// operation, the expected and the given value.
void check_arguments(const Operation& operation, const GroupIdentity& group);

// Returns the call as text, e.g. "all_gather(fp32, counts [3, 4])".
std::string describe(const Operation& operation);

// Returns the bytes that this rank receives from the other members. The result is the minimum for the collective: each
// part is received once, and an all_reduce is counted as a reduce_scatter and an all_gather.
std::int64_t received_bytes(const Operation& operation, const GroupIdentity& group);
// Returns the bytes that each of `ranks` ranks receives in an all_reduce of `bytes`, rounded down. A rank receives
// (ranks - 1) / ranks of the bytes in the reduce_scatter, and as many in the all_gather.
std::int64_t all_reduce_received(std::int64_t bytes, std::int64_t ranks);

// Returns a description of the difference between the calls of members `a` and `b` (group ranks), with both world
// ranks. Returns an empty string if the calls match.
std::string mismatch(const GroupIdentity& group, int a, const Operation& call_a, int b, const Operation& call_b);

// Convert an operation, without its addresses, to numbers that can be sent to a peer, and back. from_numbers throws
// Error if the numbers are not those of an operation of `group`.
std::vector<std::int64_t> to_numbers(const Operation& operation);
Operation from_numbers(std::span<const std::int64_t> numbers, const GroupIdentity& group);

}  // namespace tessera::comm
