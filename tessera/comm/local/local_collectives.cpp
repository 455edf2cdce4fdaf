#include "tessera/comm/local/local_collectives.h"

#include <cstring>

#include "tessera/comm/reduce.h"

namespace tessera::comm {
namespace {

void copy(void* target, const void* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, bytes);
}

// Calls visit(peer) for all members, starting with this member. Members therefore read from different peers at the same
// time.
template <typename Visit>
void for_each_member(const GroupIdentity& group, Visit visit) {
  for (int step = 0; step < group.size(); ++step) visit((group.rank + step) % group.size());
}

void all_gather(const LocalCall& call) {
  const Operation& own = call.own;
  for_each_member(call.group, [&](int peer) {
    const std::int64_t count = own.recv_counts[static_cast<std::size_t>(peer)];
    copy(advance(own.recv, offset_of(own.recv_counts, peer), own.type), call.matched.operation_of(peer).send,
         bytes_of(count, own.type));
  });
}

void all_to_all(const LocalCall& call) {
  const Operation& own = call.own;
  for_each_member(call.group, [&](int peer) {
    const Operation& theirs = call.matched.operation_of(peer);
    copy(advance(own.recv, offset_of(own.recv_counts, peer), own.type),
         advance(theirs.send, offset_of(theirs.send_counts, call.group.rank), own.type),
         bytes_of(own.recv_counts[static_cast<std::size_t>(peer)], own.type));
  });
}

// Returns the address of element `begin` in each member's buffer, in rank order.
template <typename Address>
std::vector<const void*> parts_from(const LocalCall& call, std::int64_t begin, Address address) {
  std::vector<const void*> parts;
  for (int member = 0; member < call.group.size(); ++member)
    parts.push_back(advance(address(call.matched.operation_of(member)), begin, call.own.type));
  return parts;
}

void reduce_scatter(const LocalCall& call) {
  const Operation& own = call.own;
  const auto parts = parts_from(call, offset_of(own.send_counts, call.group.rank),
                                [](const Operation& operation) { return operation.send; });
  reduce(own.recv, parts, own.type, own.reduce, own.send_counts[static_cast<std::size_t>(call.group.rank)]);
}

const void* received(const Operation& operation) {
  return operation.recv;
}

// Each member sums all elements. This needs one wait less than summing in parts.
void all_reduce_small(const LocalCall& call) {
  const Operation& own = call.own;
  const std::int64_t count = own.recv_counts[0];
  const std::size_t bytes = bytes_of(count, own.type);
  if (call.scratch.size() < bytes) call.scratch = base::Buffer(bytes);
  reduce(call.scratch.data(), parts_from(call, 0, received), own.type, own.reduce, count);
  call.matched.synchronize();
  copy(own.recv, call.scratch.data(), bytes);
}

// Each member sums its own part of all buffers into its own buffer. The member then copies the other parts from the
// buffers of its peers.
void all_reduce_in_parts(const LocalCall& call) {
  const Operation& own = call.own;
  const std::int64_t count = own.recv_counts[0];
  const auto begin_of = [&](int member) { return count / call.group.size() * member; };
  const auto size_of_part = [&](int member) {
    return (member + 1 == call.group.size() ? count : begin_of(member + 1)) - begin_of(member);
  };
  const std::int64_t begin = begin_of(call.group.rank);
  reduce(advance(own.recv, begin, own.type), parts_from(call, begin, received), own.type, own.reduce,
         size_of_part(call.group.rank));
  call.matched.synchronize();
  for_each_member(call.group, [&](int peer) {
    copy(advance(own.recv, begin_of(peer), own.type),
         advance(received(call.matched.operation_of(peer)), begin_of(peer), own.type),
         bytes_of(size_of_part(peer), own.type));
  });
}

void all_reduce(const LocalCall& call) {
  constexpr std::size_t small = 32768;  // up to this number of bytes, each member sums all elements
  if (call.group.size() == 1) return;
  if (bytes_of(call.own.recv_counts[0], call.own.type) <= small)
    all_reduce_small(call);
  else
    all_reduce_in_parts(call);
}

void broadcast(const LocalCall& call) {
  const Operation& own = call.own;
  copy(own.recv, call.matched.operation_of(own.root).recv, bytes_of(own.recv_counts[0], own.type));
}

// The k-th message received from a peer is the k-th message that the peer sends to this rank. Empty messages are not
// counted.
void exchange(const LocalCall& call) {
  std::vector<std::size_t> next(static_cast<std::size_t>(call.group.size()));
  for (const Receive& receive : call.own.receives) {
    if (receive.bytes == 0) continue;
    const std::vector<Send>& sends = call.matched.operation_of(receive.peer).sends;
    std::size_t& at = next[static_cast<std::size_t>(receive.peer)];
    while (sends[at].peer != call.group.rank || sends[at].bytes == 0) ++at;
    copy(receive.data, sends[at++].data, receive.bytes);
  }
}

// Returns whether the members together receive at most `small` bytes, and their calls match.
bool fits_one_member(const LocalCall& call, std::int64_t small) {
  GroupIdentity member = call.group;
  std::int64_t bytes = 0;
  for (member.rank = 0; member.rank < member.size(); ++member.rank) {
    const Operation& operation = call.matched.operation_of(member.rank);
    bytes += received_bytes(operation, member);
    if (bytes > small) return false;
    for (int peer = 0; peer < member.rank; ++peer)
      if (!mismatch(member, member.rank, operation, peer, call.matched.operation_of(peer)).empty()) return false;
  }
  return true;
}

}  // namespace

bool execute_together(const LocalCall& call, std::int64_t small) {
  if (!fits_one_member(call, small)) return false;
  GroupIdentity member = call.group;
  const bool is_sum = call.own.kind == OperationKind::all_reduce && member.size() > 1;
  const std::size_t bytes = is_sum ? bytes_of(call.own.recv_counts[0], call.own.type) : 0;
  if (is_sum) {
    if (call.scratch.size() < bytes) call.scratch = base::Buffer(bytes);
    reduce(call.scratch.data(), parts_from(call, 0, received), call.own.type, call.own.reduce, call.own.recv_counts[0]);
  }
  for (member.rank = 0; member.rank < member.size(); ++member.rank) {
    const Operation& own = call.matched.operation_of(member.rank);
    if (is_sum)
      copy(own.recv, call.scratch.data(), bytes);
    else
      execute({.matched = call.matched, .own = own, .group = member, .scratch = call.scratch});
  }
  return true;
}

void execute(const LocalCall& call) {
  switch (call.own.kind) {
    case OperationKind::all_gather:
      return all_gather(call);
    case OperationKind::all_to_all:
      return all_to_all(call);
    case OperationKind::reduce_scatter:
      return reduce_scatter(call);
    case OperationKind::all_reduce:
      return all_reduce(call);
    case OperationKind::broadcast:
      return broadcast(call);
    case OperationKind::barrier:
      return;
    case OperationKind::exchange:
      return exchange(call);
  }
}

}  // namespace tessera::comm
