#include "tessera/comm/mpi/backend.h"

#include <atomic>
#include <cstring>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {
namespace {

// Up to this many bytes every rank takes everything and sums it alone: one round less.
constexpr std::size_t kSmallAllReduce = 16384;

// Even the smallest tag limit the standard allows, 32767, is kept. The kind is part of it: other calls never meet.
int tag_of(std::int64_t sequence, int kind) {
  return static_cast<int>(sequence % 2048) * 16 + kind;
}
constexpr int kCheckKind = 15;

void copy(void* target, const void* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, bytes);
}

class MpiBackend final : public Backend {
 public:
  MpiBackend(std::shared_ptr<MpiProgress> progress, MpiContext context, const GroupIdentity& identity,
             const WorldOptions& options)
      : progress_(std::move(progress)), context_(context), group_(identity), options_(options) {}

  void perform(const Operation& operation, base::VirtualClock* clock) override;
  void cancel() override { progress_->cancel(context_); }

 private:
  // The operation under way; only the lane touches it.
  struct Call {
    std::string label;
    MpiDeadline deadline;
    int tag = 0;
  };

  void carry_out(const Operation& operation);
  void check(const Operation& operation);
  void all_gather(const Operation& operation);
  void all_to_all(const Operation& operation);
  void reduce_scatter(const Operation& operation);
  void all_reduce(const Operation& operation);
  void all_reduce_small(const Operation& operation);
  void broadcast(const Operation& operation);
  void barrier();
  void exchange(const Operation& operation);

  // Sends and receives with group ranks as peers; blocks. `keep_empty`: messages without bytes are sent too.
  void run(std::vector<Send> sends, std::vector<Receive> receives, bool keep_empty = false);
  // One message of this size from every peer into scratch; the members' parts in rank order, `own` at this rank's
  // place.
  std::vector<const void*> receive_parts(std::size_t bytes, const void* own, std::vector<Receive>& receives);
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    for (int step = 1; step < group_.size(); ++step) visit((group_.rank + step) % group_.size());
  }

  std::shared_ptr<MpiProgress> progress_;
  const MpiContext context_;
  const GroupIdentity group_;
  const WorldOptions options_;
  std::int64_t sequence_ = 0;
  Call call_;
  base::Buffer scratch_;
};

void MpiBackend::perform(const Operation& operation, base::VirtualClock*) {
  const std::int64_t sequence = sequence_++;
  call_ = {.label = fmt::format("{} #{} on {}, rank {}", name_of(operation.kind), sequence, group_.name,
                                group_.world_rank()),
           .deadline = std::chrono::steady_clock::now() + options_.timeout,
           .tag = tag_of(sequence, kCheckKind)};
  try {
    if (options_.check_mismatch) check(operation);
    call_.tag = tag_of(sequence, static_cast<int>(operation.kind));
    carry_out(operation);
  } catch (const std::exception& error) {
    throw Error("{}: {}", call_.label, error.what());
  }
}

void MpiBackend::run(std::vector<Send> sends, std::vector<Receive> receives, bool keep_empty) {
  MpiRound round{.context = context_,
                 .tag = call_.tag,
                 .label = call_.label,
                 .deadline = call_.deadline,
                 .timeout = options_.timeout,
                 .sends = std::move(sends),
                 .receives = std::move(receives)};
  if (!keep_empty) {
    std::erase_if(round.sends, [](const Send& send) { return send.bytes == 0; });
    std::erase_if(round.receives, [](const Receive& receive) { return receive.bytes == 0; });
  }
  for (Send& send : round.sends) send.peer = group_.members[static_cast<std::size_t>(send.peer)];
  for (Receive& receive : round.receives) receive.peer = group_.members[static_cast<std::size_t>(receive.peer)];
  if (!round.sends.empty() || !round.receives.empty()) progress_->exchange(std::move(round));
}

// All members' calls, compared before anything moves.
void MpiBackend::check(const Operation& operation) {
  const std::vector<std::int64_t> own = to_numbers(operation);
  const auto size = static_cast<std::int64_t>(own.size());
  std::vector<std::int64_t> sizes(group_.members.size());
  std::vector<std::vector<std::int64_t>> theirs(group_.members.size());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer([&](int peer) {
    sends.push_back({.peer = peer, .data = &size, .bytes = sizeof size});
    receives.push_back({.peer = peer, .data = &sizes[static_cast<std::size_t>(peer)], .bytes = sizeof size});
  });
  run(std::move(sends), std::move(receives));
  sends.clear();
  receives.clear();
  for_each_peer([&](int peer) {
    auto& numbers = theirs[static_cast<std::size_t>(peer)];
    numbers.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(peer)]));
    sends.push_back({.peer = peer, .data = own.data(), .bytes = own.size() * sizeof(std::int64_t)});
    receives.push_back({.peer = peer, .data = numbers.data(), .bytes = numbers.size() * sizeof(std::int64_t)});
  });
  run(std::move(sends), std::move(receives));
  for_each_peer([&](int peer) {
    const Operation their_call = from_numbers(theirs[static_cast<std::size_t>(peer)]);
    const std::string text = mismatch(group_, group_.rank, operation, peer, their_call);
    if (!text.empty()) throw Error("the calls do not match: {}", text);
  });
}

void MpiBackend::carry_out(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::all_gather:
      return all_gather(operation);
    case OperationKind::all_to_all:
      return all_to_all(operation);
    case OperationKind::reduce_scatter:
      return reduce_scatter(operation);
    case OperationKind::all_reduce:
      return all_reduce(operation);
    case OperationKind::broadcast:
      return broadcast(operation);
    case OperationKind::barrier:
      return barrier();
    case OperationKind::exchange:
      return exchange(operation);
  }
}

void MpiBackend::all_gather(const Operation& operation) {
  const auto bytes = [&](int r) {
    return bytes_of(operation.recv_counts[static_cast<std::size_t>(r)], operation.type);
  };
  const auto place = [&](int r) {
    return advance(operation.recv, offset_of(operation.recv_counts, r), operation.type);
  };
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer([&](int peer) {
    sends.push_back({.peer = peer, .data = operation.send, .bytes = bytes(group_.rank)});
    receives.push_back({.peer = peer, .data = place(peer), .bytes = bytes(peer)});
  });
  copy(place(group_.rank), operation.send, bytes(group_.rank));
  run(std::move(sends), std::move(receives));
}

void MpiBackend::all_to_all(const Operation& operation) {
  const auto& sent = operation.send_counts;
  const auto& received = operation.recv_counts;
  const auto from = [&](int r) { return advance(operation.send, offset_of(sent, r), operation.type); };
  const auto to = [&](int r) { return advance(operation.recv, offset_of(received, r), operation.type); };
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer([&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    sends.push_back({.peer = peer, .data = from(peer), .bytes = bytes_of(sent[p], operation.type)});
    receives.push_back({.peer = peer, .data = to(peer), .bytes = bytes_of(received[p], operation.type)});
  });
  const auto own = bytes_of(received[static_cast<std::size_t>(group_.rank)], operation.type);
  copy(to(group_.rank), from(group_.rank), own);
  run(std::move(sends), std::move(receives));
}

std::vector<const void*> MpiBackend::receive_parts(std::size_t bytes, const void* own, std::vector<Receive>& receives) {
  const std::size_t room = base::align_up(bytes);
  if (scratch_.size() < room * group_.members.size()) scratch_ = base::Buffer(room * group_.members.size());
  std::vector<const void*> parts(group_.members.size());
  parts[static_cast<std::size_t>(group_.rank)] = own;
  for_each_peer([&](int peer) {
    std::byte* place = scratch_.data() + room * static_cast<std::size_t>(peer);
    receives.push_back({.peer = peer, .data = place, .bytes = bytes});
    parts[static_cast<std::size_t>(peer)] = place;
  });
  return parts;
}

void MpiBackend::reduce_scatter(const Operation& operation) {
  const auto& counts = operation.send_counts;
  const auto from = [&](int r) { return advance(operation.send, offset_of(counts, r), operation.type); };
  const std::int64_t own = counts[static_cast<std::size_t>(group_.rank)];
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer([&](int peer) {
    const std::size_t bytes = bytes_of(counts[static_cast<std::size_t>(peer)], operation.type);
    sends.push_back({.peer = peer, .data = from(peer), .bytes = bytes});
  });
  const auto parts = receive_parts(bytes_of(own, operation.type), from(group_.rank), receives);
  run(std::move(sends), std::move(receives));
  reduce(operation.recv, parts, operation.type, operation.reduce, own);
}

void MpiBackend::all_reduce_small(const Operation& operation) {
  const std::int64_t count = operation.recv_counts[0];
  const std::size_t bytes = bytes_of(count, operation.type);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer([&](int peer) { sends.push_back({.peer = peer, .data = operation.recv, .bytes = bytes}); });
  const auto parts = receive_parts(bytes, operation.recv, receives);
  run(std::move(sends), std::move(receives));
  reduce(operation.recv, parts, operation.type, operation.reduce, count);
}

// Each rank sums a part and gives it to all.
void MpiBackend::all_reduce(const Operation& operation) {
  const std::int64_t count = operation.recv_counts[0];
  if (group_.size() == 1) return;
  if (bytes_of(count, operation.type) <= kSmallAllReduce) return all_reduce_small(operation);
  const AllReduceHalves halves = halves_of_all_reduce(operation, group_);
  reduce_scatter(halves.reduce_scatter);
  all_gather(halves.all_gather);
}

void MpiBackend::broadcast(const Operation& operation) {
  const std::size_t bytes = bytes_of(operation.recv_counts[0], operation.type);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  if (group_.rank == operation.root)
    for_each_peer([&](int peer) { sends.push_back({.peer = peer, .data = operation.recv, .bytes = bytes}); });
  else
    receives.push_back({.peer = operation.root, .data = operation.recv, .bytes = bytes});
  run(std::move(sends), std::move(receives));
}

void MpiBackend::barrier() {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer([&](int peer) {
    sends.push_back({.peer = peer});
    receives.push_back({.peer = peer});
  });
  run(std::move(sends), std::move(receives), true);
}

void MpiBackend::exchange(const Operation& operation) {
  for (const auto& [send, receive] : messages_to_self(operation, group_.rank))
    copy(receive.data, send.data, receive.bytes);
  const auto is_own = [&](const auto& message) { return message.peer == group_.rank; };
  std::vector<Send> sends = operation.sends;
  std::vector<Receive> receives = operation.receives;
  std::erase_if(sends, is_own);
  std::erase_if(receives, is_own);
  run(std::move(sends), std::move(receives));
}

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(std::shared_ptr<MpiProgress> progress, MpiContext context,
                                          const GroupIdentity& identity, const WorldOptions& options) {
  return std::make_unique<MpiBackend>(std::move(progress), context, identity, options);
}

}  // namespace tessera::comm
