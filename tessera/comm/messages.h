// Collectives as messages: what one member sends to others, receives from them and keeps. Peers are group ranks, in the
// order of for_each_peer, so that not all send to the same one at once; of an exchange in its own order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/comm/operation.h"

namespace tessera::comm {

// From one place that this rank reaches to another.
struct Copy {
  const void* source = nullptr;
  void* target = nullptr;
  std::size_t bytes = 0;
};

// None is empty or to this rank, no copy is to its own place.
struct Messages {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  std::vector<Copy> own;  // within this rank's memory
};

// Of an all_gather, all_to_all or exchange. Errors: an exchange whose sends and receives with this rank do not fit.
Messages messages_of(const Operation& operation, const GroupIdentity& group);

// A reduction as messages and a sum: every member's part comes to who sums it.
struct PartsToSum {
  Messages messages;
  std::vector<const void*> parts;  // by group rank, `count` elements each: this rank's where it lies, others in scratch
  std::int64_t count = 0;
};
// Bytes of scratch that parts_to_sum needs.
std::size_t scratch_bytes(const Operation& operation, const GroupIdentity& group);
// Of a reduce_scatter; of an all_reduce so that each member sums everything.
PartsToSum parts_to_sum(const Operation& operation, const GroupIdentity& group, std::byte* scratch);

// An all_reduce as two operations: each member sums a part, dense and about equal, in place, and gives it to all.
struct AllReduceHalves {
  Operation reduce_scatter, all_gather;
};
AllReduceHalves halves_of_all_reduce(const Operation& operation, const GroupIdentity& group);

}  // namespace tessera::comm
