#include "tessera/comm/messages.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"

namespace tessera::comm {
namespace {

std::int64_t at(const std::vector<std::int64_t>& counts, int rank) {
  return counts[static_cast<std::size_t>(rank)];
}

// Collects messages and omits empty ones.
class Writer {
 public:
  void send(int peer, const void* data, std::size_t bytes) {
    if (bytes > 0) messages_.sends.push_back({.peer = peer, .data = data, .bytes = bytes});
  }
  void receive(int peer, void* data, std::size_t bytes) {
    if (bytes > 0) messages_.receives.push_back({.peer = peer, .data = data, .bytes = bytes});
  }
  void keep(const void* source, void* target, std::size_t bytes) {
    if (bytes > 0 && source != target) messages_.own.push_back({.source = source, .target = target, .bytes = bytes});
  }
  Messages take() { return std::move(messages_); }

 private:
  Messages messages_;
};

Messages of_all_gather(const Operation& operation, const GroupIdentity& group) {
  const auto& counts = operation.recv_counts;
  const auto bytes = [&](int rank) { return bytes_of(at(counts, rank), operation.type); };
  const auto place = [&](int rank) { return advance(operation.recv, offset_of(counts, rank), operation.type); };
  Writer writer;
  group.for_each_peer([&](int peer) {
    writer.send(peer, operation.send, bytes(group.rank));
    writer.receive(peer, place(peer), bytes(peer));
  });
  writer.keep(operation.send, place(group.rank), bytes(group.rank));
  return writer.take();
}

Messages of_all_to_all(const Operation& operation, const GroupIdentity& group) {
  const auto& sent = operation.send_counts;
  const auto& received = operation.recv_counts;
  const auto from = [&](int rank) { return advance(operation.send, offset_of(sent, rank), operation.type); };
  const auto to = [&](int rank) { return advance(operation.recv, offset_of(received, rank), operation.type); };
  Writer writer;
  group.for_each_peer([&](int peer) {
    writer.send(peer, from(peer), bytes_of(at(sent, peer), operation.type));
    writer.receive(peer, to(peer), bytes_of(at(received, peer), operation.type));
  });
  writer.keep(from(group.rank), to(group.rank), bytes_of(at(received, group.rank), operation.type));
  return writer.take();
}

// Returns the messages of an exchange that this rank sends to itself. Empty messages are omitted.
template <typename Message>
std::vector<Message> with_self(const std::vector<Message>& messages, const GroupIdentity& group) {
  std::vector<Message> own;
  for (const Message& message : messages)
    if (message.peer == group.rank && message.bytes > 0) own.push_back(message);
  return own;
}

Messages of_exchange(const Operation& operation, const GroupIdentity& group) {
  Writer writer;
  for (const Send& send : operation.sends)
    if (send.peer != group.rank) writer.send(send.peer, send.data, send.bytes);
  for (const Receive& receive : operation.receives)
    if (receive.peer != group.rank) writer.receive(receive.peer, receive.data, receive.bytes);
  const std::vector<Send> sends = with_self(operation.sends, group);
  const std::vector<Receive> receives = with_self(operation.receives, group);
  for (std::size_t i = 0; i < receives.size(); ++i) {
    if (i >= sends.size() || sends[i].bytes != receives[i].bytes)
      throw Error("the calls do not match: receive {} from itself, of {} bytes, has no matching send", i,
                  receives[i].bytes);
    writer.keep(sends[i].data, receives[i].data, sends[i].bytes);
  }
  if (receives.size() != sends.size())
    throw Error("the calls do not match: {} sends to itself, but {} receives from itself", sends.size(),
                receives.size());
  return writer.take();
}

// Returns the number of elements that this rank sums.
std::int64_t count_to_sum(const Operation& operation, const GroupIdentity& group) {
  const bool is_all = operation.kind == OperationKind::all_reduce;
  return is_all ? operation.recv_counts[0] : at(operation.send_counts, group.rank);
}

// Returns the bytes between the starts of two parts in scratch.
std::size_t room_of(const Operation& operation, const GroupIdentity& group) {
  return base::align_up(bytes_of(count_to_sum(operation, group), operation.type));
}

}  // namespace

std::vector<Copy> divided_copies(const std::vector<Copy>& copies, std::size_t longest) {
  TESSERA_CHECK(longest > 0, "copies of at most 0 bytes");
  std::vector<Copy> parts;
  for (const Copy& copy : copies)
    for (std::size_t begin = 0; begin < copy.bytes; begin += std::min(longest, copy.bytes - begin))
      parts.push_back({.source = static_cast<const std::byte*>(copy.source) + begin,
                       .target = static_cast<std::byte*>(copy.target) + begin,
                       .bytes = std::min(longest, copy.bytes - begin)});
  return parts;
}

Messages messages_of(const Operation& operation, const GroupIdentity& group) {
  switch (operation.kind) {
    case OperationKind::all_gather:
      return of_all_gather(operation, group);
    case OperationKind::all_to_all:
      return of_all_to_all(operation, group);
    case OperationKind::exchange:
      return of_exchange(operation, group);
    default:
      throw Error("{} does not consist of messages alone", name_of(operation.kind));
  }
}

std::size_t scratch_bytes(const Operation& operation, const GroupIdentity& group) {
  return room_of(operation, group) * group.members.size();
}

PartsToSum parts_to_sum(const Operation& operation, const GroupIdentity& group, std::byte* scratch) {
  const bool is_all = operation.kind == OperationKind::all_reduce;
  const auto& counts = operation.send_counts;
  const auto from = [&](int rank) -> const void* {
    return is_all ? operation.recv : advance(operation.send, offset_of(counts, rank), operation.type);
  };
  PartsToSum sum{.parts = std::vector<const void*>(group.members.size(), from(group.rank)),
                 .count = count_to_sum(operation, group)};
  Writer writer;
  group.for_each_peer([&](int peer) {
    std::byte* const place = scratch + room_of(operation, group) * static_cast<std::size_t>(peer);
    writer.send(peer, from(peer), bytes_of(is_all ? sum.count : at(counts, peer), operation.type));
    writer.receive(peer, place, bytes_of(sum.count, operation.type));
    sum.parts[static_cast<std::size_t>(peer)] = place;
  });
  sum.messages = writer.take();
  return sum;
}

AllReduceHalves halves_of_all_reduce(const Operation& operation, const GroupIdentity& group) {
  const std::int64_t count = operation.recv_counts[0];
  Operation half = operation;
  half.send_counts = equal_counts(group.size(), count / group.size());
  half.send_counts.back() += count % group.size();
  half.recv_counts = half.send_counts;
  AllReduceHalves halves{half, half};
  halves.reduce_scatter.kind = OperationKind::reduce_scatter;
  halves.all_gather.kind = OperationKind::all_gather;
  std::byte* own = advance(operation.recv, offset_of(half.send_counts, group.rank), operation.type);
  halves.reduce_scatter.send = operation.recv;
  halves.reduce_scatter.recv = own;
  halves.all_gather.send = own;
  return halves;
}

}  // namespace tessera::comm
