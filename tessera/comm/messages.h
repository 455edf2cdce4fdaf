// Expresses collectives as messages: the data that one member sends, receives and copies within its memory. Peers are
// group ranks. Messages are in the order of for_each_peer, so that members do not all send to the same peer at once.
// The messages of an exchange keep the order of its lists.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/comm/operation.h"

namespace tessera::comm {

// A copy between two addresses that this rank can access.
struct Copy {
  const void* source = nullptr;
  void* target = nullptr;
  std::size_t bytes = 0;
};

// Divides each copy into copies of at most `longest` bytes, in order. `longest` must not be 0.
std::vector<Copy> divided_copies(const std::vector<Copy>& copies, std::size_t longest);

// Contains no empty messages, no messages to this rank, and no copies whose source and target are equal.
struct Messages {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  std::vector<Copy> own;  // within this rank's memory
};

// Returns the messages of an all_gather, all_to_all or exchange. Throws Error for another operation, and if an
// exchange's sends to this rank do not match its receives from this rank.
Messages messages_of(const Operation& operation, const GroupIdentity& group);

// A reduction as messages and a sum: each member receives the parts that the member sums.
struct PartsToSum {
  Messages messages;
  // By group rank: the address of the rank's part, which has `count` elements. This rank's part is in its own buffer;
  // the parts of peers are in scratch.
  std::vector<const void*> parts;
  std::int64_t count = 0;
};
// Returns the bytes of scratch that parts_to_sum needs.
std::size_t scratch_bytes(const Operation& operation, const GroupIdentity& group);
// Accepts a reduce_scatter or an all_reduce. For an all_reduce, each member receives every part in full and sums all
// elements.
PartsToSum parts_to_sum(const Operation& operation, const GroupIdentity& group, std::byte* scratch);

// An all_reduce as a reduce_scatter and an all_gather. Each member sums one part in place and then sends the sum to all
// members. The parts are contiguous and about equal in size.
struct AllReduceHalves {
  Operation reduce_scatter, all_gather;
};
AllReduceHalves halves_of_all_reduce(const Operation& operation, const GroupIdentity& group);

}  // namespace tessera::comm
