#include "tessera/comm/operation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {
namespace {

[[noreturn]] void refuse(const Operation& operation, const GroupIdentity& group, const std::string& what) {
  throw Error("{} on {}, rank {}: {}", name_of(operation.kind), group.name, group.world_rank(), what);
}

// The numbers of counts that an operation needs.
struct CountSizes {
  std::size_t send = 0, recv = 0;
};
CountSizes count_sizes(OperationKind kind, const GroupIdentity& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const bool one_count = kind == OperationKind::all_reduce || kind == OperationKind::broadcast;
  const bool sends = kind == OperationKind::all_to_all || kind == OperationKind::reduce_scatter;
  const bool receives = kind == OperationKind::all_to_all || kind == OperationKind::all_gather;
  return {.send = sends ? ranks : 0, .recv = one_count ? 1 : receives ? ranks : 0};
}

void check_counts(const Operation& operation, const GroupIdentity& group, std::span<const std::int64_t> counts,
                  std::size_t expected, const char* what) {
  if (counts.size() != expected)
    refuse(operation, group, fmt::format("expected {} {}, got {}", expected, what, counts.size()));
  std::int64_t room = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(size_of(operation.type));
  for (const std::int64_t count : counts) {
    if (count < 0) refuse(operation, group, fmt::format("expected {} of at least 0, got {}", what, count));
    if (count > room) refuse(operation, group, fmt::format("{}: more bytes than fit in 64 bits", what));
    room -= count;
  }
}

void check_pointer(const Operation& operation, const GroupIdentity& group, const void* pointer, std::int64_t elements,
                   const char* what) {
  if (pointer == nullptr && elements > 0)
    refuse(operation, group, fmt::format("{} is null, expected a buffer of {} elements", what, elements));
}

template <typename Message>
void check_messages(const Operation& operation, const GroupIdentity& group, const std::vector<Message>& messages,
                    const char* what) {
  for (const Message& message : messages) {
    if (message.peer < 0 || message.peer >= group.size())
      refuse(operation, group, fmt::format("{}: expected a peer in [0, {}), got {}", what, group.size(), message.peer));
    if (message.data == nullptr && message.bytes > 0)
      refuse(operation, group,
             fmt::format("{} of {} bytes with peer {}: null address", what, message.bytes, message.peer));
  }
}

std::int64_t total(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::string list(std::span<const std::int64_t> counts) {
  constexpr std::size_t max_shown = 8;
  const auto shown = counts.first(std::min(counts.size(), max_shown));
  return fmt::format("[{}{}]", fmt::join(shown, ", "), counts.size() > max_shown ? ", ..." : "");
}

template <typename Message>
std::vector<std::int64_t> sizes_with(const std::vector<Message>& messages, int peer) {
  std::vector<std::int64_t> sizes;
  for (const Message& message : messages)
    if (message.peer == peer && message.bytes > 0) sizes.push_back(static_cast<std::int64_t>(message.bytes));
  return sizes;
}

// Compares only the messages from `a` to `b`; the caller also compares the other direction.
std::string message_mismatch(const GroupIdentity& group, int a, const Operation& call_a, int b,
                             const Operation& call_b) {
  const int from = group.members[static_cast<std::size_t>(a)], to = group.members[static_cast<std::size_t>(b)];
  if (call_a.kind == OperationKind::all_to_all) {
    const std::int64_t sent = call_a.send_counts[static_cast<std::size_t>(b)];
    const std::int64_t expected = call_b.recv_counts[static_cast<std::size_t>(a)];
    if (sent == expected) return {};
    return fmt::format("all_to_all: rank {} sends {} elements of {} to rank {}, which expects {}", from, sent,
                       name_of(call_a.type), to, expected);
  }
  const auto sent = sizes_with(call_a.sends, b), expected = sizes_with(call_b.receives, a);
  if (sent == expected) return {};
  return fmt::format("exchange: rank {} sends messages of {} bytes to rank {}, which expects {}", from, list(sent), to,
                     list(expected));
}

bool same_call(const Operation& a, const Operation& b) {
  if (a.kind != b.kind || a.type != b.type || a.reduce != b.reduce || a.root != b.root) return false;
  if (a.kind == OperationKind::all_to_all) return true;  // the counts of an all_to_all may differ between ranks
  return a.send_counts == b.send_counts && a.recv_counts == b.recv_counts;
}

}  // namespace

std::string_view name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_gather:
      return "all_gather";
    case OperationKind::all_to_all:
      return "all_to_all";
    case OperationKind::reduce_scatter:
      return "reduce_scatter";
    case OperationKind::all_reduce:
      return "all_reduce";
    case OperationKind::broadcast:
      return "broadcast";
    case OperationKind::barrier:
      return "barrier";
    case OperationKind::exchange:
      return "exchange";
  }
  return "?";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "?";
}

std::int64_t offset_of(std::span<const std::int64_t> counts, int index) {
  return total(counts.first(static_cast<std::size_t>(index)));
}

std::size_t bytes_of(std::int64_t count, quant::DType type) {
  return static_cast<std::size_t>(count) * quant::size_of(type);
}

const std::byte* advance(const void* data, std::int64_t count, quant::DType type) {
  return static_cast<const std::byte*>(data) + bytes_of(count, type);
}

std::byte* advance(void* data, std::int64_t count, quant::DType type) {
  return static_cast<std::byte*>(data) + bytes_of(count, type);
}

void check_arguments(const Operation& operation, const GroupIdentity& group) {
  const CountSizes sizes = count_sizes(operation.kind, group);
  if (sizes.send > 0) check_counts(operation, group, operation.send_counts, sizes.send, "counts to send");
  if (sizes.recv > 0) check_counts(operation, group, operation.recv_counts, sizes.recv, "counts to receive");
  const auto own = static_cast<std::size_t>(group.rank);
  const std::int64_t sent = operation.kind == OperationKind::all_gather ? operation.recv_counts[own]
                            : sizes.send > 0                            ? total(operation.send_counts)
                                                                        : 0;
  const std::int64_t received =
      operation.kind == OperationKind::reduce_scatter ? operation.send_counts[own] : total(operation.recv_counts);
  check_pointer(operation, group, operation.send, sent, "send");
  check_pointer(operation, group, operation.recv, received, "recv");
  check_messages(operation, group, operation.sends, "send");
  check_messages(operation, group, operation.receives, "receive");
  if (operation.root < 0 || operation.root >= group.size())
    refuse(operation, group, fmt::format("expected a root in [0, {}), got {}", group.size(), operation.root));
  if (operation.kind == OperationKind::all_reduce || operation.kind == OperationKind::reduce_scatter)
    check_reducible(operation.type, operation.reduce, name_of(operation.kind).data());
}

std::int64_t received_bytes(const Operation& operation, const GroupIdentity& group) {
  const auto own = static_cast<std::size_t>(group.rank);
  const auto bytes = [&](std::int64_t count) { return static_cast<std::int64_t>(bytes_of(count, operation.type)); };
  const std::int64_t others = group.size() - 1;
  switch (operation.kind) {
    case OperationKind::all_gather:
    case OperationKind::all_to_all:
      return bytes(total(operation.recv_counts) - operation.recv_counts[own]);
    case OperationKind::reduce_scatter:
      return bytes(operation.send_counts[own]) * others;
    case OperationKind::all_reduce:
      return all_reduce_received(bytes(operation.recv_counts[0]), group.size());
    case OperationKind::broadcast:
      return group.rank == operation.root ? 0 : bytes(operation.recv_counts[0]);
    case OperationKind::barrier:
      return 0;
    case OperationKind::exchange: {
      std::int64_t sum = 0;
      for (const Receive& receive : operation.receives)
        if (receive.peer != group.rank) sum += static_cast<std::int64_t>(receive.bytes);
      return sum;
    }
  }
  return 0;
}

std::int64_t all_reduce_received(std::int64_t bytes, std::int64_t ranks) {
  return 2 * (ranks - 1) * bytes / ranks;
}

std::string describe(const Operation& operation) {
  const std::string_view name = name_of(operation.kind), type = name_of(operation.type);
  switch (operation.kind) {
    case OperationKind::all_gather:
      return fmt::format("{}({}, counts {})", name, type, list(operation.recv_counts));
    case OperationKind::all_to_all:
      return fmt::format("{}({}, counts {} to send, {} to receive)", name, type, list(operation.send_counts),
                         list(operation.recv_counts));
    case OperationKind::reduce_scatter:
      return fmt::format("{}({}, {}, counts {})", name, name_of(operation.reduce), type, list(operation.send_counts));
    case OperationKind::all_reduce:
      return fmt::format("{}({}, {}, count {})", name, name_of(operation.reduce), type, operation.recv_counts[0]);
    case OperationKind::broadcast:
      return fmt::format("{}({}, count {}, root {})", name, type, operation.recv_counts[0], operation.root);
    case OperationKind::barrier:
      return "barrier()";
    case OperationKind::exchange:
      return fmt::format("{}({} sends, {} receives)", name, operation.sends.size(), operation.receives.size());
  }
  return std::string(name);
}

std::string mismatch(const GroupIdentity& group, int a, const Operation& call_a, int b, const Operation& call_b) {
  if (!same_call(call_a, call_b))
    return fmt::format("rank {} called {}, rank {} called {}", group.members[static_cast<std::size_t>(a)],
                       describe(call_a), group.members[static_cast<std::size_t>(b)], describe(call_b));
  if (call_a.kind != OperationKind::all_to_all && call_a.kind != OperationKind::exchange) return {};
  std::string text = message_mismatch(group, a, call_a, b, call_b);
  return text.empty() ? message_mismatch(group, b, call_b, a, call_a) : text;
}

std::vector<std::int64_t> to_numbers(const Operation& operation) {
  std::vector<std::int64_t> numbers{static_cast<std::int64_t>(operation.kind),
                                    static_cast<std::int64_t>(operation.type),
                                    static_cast<std::int64_t>(operation.reduce), operation.root};
  for (const auto* counts : {&operation.send_counts, &operation.recv_counts}) {
    numbers.push_back(static_cast<std::int64_t>(counts->size()));
    numbers.insert(numbers.end(), counts->begin(), counts->end());
  }
  const auto append = [&](const auto& messages) {
    numbers.push_back(static_cast<std::int64_t>(messages.size()));
    for (const auto& message : messages) {
      numbers.push_back(message.peer);
      numbers.push_back(static_cast<std::int64_t>(message.bytes));
    }
  };
  append(operation.sends);
  append(operation.receives);
  return numbers;
}

Operation from_numbers(std::span<const std::int64_t> numbers, const GroupIdentity& group) {
  std::size_t at = 0;
  const auto next = [&] {
    TESSERA_CHECK(at < numbers.size(), "a peer's description of its operation ends after {} numbers; expected more",
                  at);
    return numbers[at++];
  };
  Operation operation;
  operation.kind = static_cast<OperationKind>(next());
  operation.type = static_cast<quant::DType>(next());
  operation.reduce = static_cast<ReduceOp>(next());
  operation.root = static_cast<int>(next());
  for (auto* counts : {&operation.send_counts, &operation.recv_counts})
    for (std::int64_t left = next(); left > 0; --left) counts->push_back(next());
  const auto read = [&](auto& messages) {
    for (std::int64_t left = next(); left > 0; --left) {
      auto& message = messages.emplace_back();
      message.peer = static_cast<int>(next());
      message.bytes = static_cast<std::size_t>(next());
    }
  };
  read(operation.sends);
  read(operation.receives);
  const CountSizes sizes = count_sizes(operation.kind, group);
  TESSERA_CHECK((sizes.send == 0 || operation.send_counts.size() == sizes.send) &&
                    (sizes.recv == 0 || operation.recv_counts.size() == sizes.recv),
                "a peer's description of its {} on {} has {} and {} counts; expected {} and {}",
                name_of(operation.kind), group.name, operation.send_counts.size(), operation.recv_counts.size(),
                sizes.send, sizes.recv);
  return operation;
}

}  // namespace tessera::comm
