#include "tessera/comm/mpi/backend.h"

#include <atomic>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/comm/messages.h"
#include "tessera/comm/received_length.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {
namespace {

// The largest number of bytes of an all_reduce in which every rank receives all parts and sums them, which takes one
// round less.
constexpr std::size_t kSmallAllReduce = 16384;

// The tag is at most 32767, the smallest tag limit that the standard allows. The tag contains the kind, so that
// messages of different kinds of calls do not match.
int tag_of(std::int64_t sequence, int kind) {
  return static_cast<int>(sequence % 2048) * 16 + kind;
}
constexpr int kCheckKind = 15;
// The largest number of numbers that describe a call (to_numbers).
constexpr std::int64_t kMaxNumbers = std::int64_t{1} << 26;

class MpiBackend final : public Backend {
 public:
  MpiBackend(std::shared_ptr<MpiProgress> progress, MpiContext context, const GroupIdentity& identity,
             const WorldOptions& options)
      : progress_(std::move(progress)), context_(context), group_(identity), options_(options) {}

  void perform(const Operation& operation, base::VirtualClock* clock) override;
  void cancel() override { progress_->cancel(context_); }

 private:
  // The current operation. Only the lane accesses this member.
  struct Call {
    std::string label;
    MpiDeadline deadline;
    int tag = 0;
  };

  void execute(const Operation& operation);
  void check(const Operation& operation);
  void reduce(const Operation& operation);
  void all_reduce(const Operation& operation);
  void broadcast(const Operation& operation);
  void barrier();

  // Both functions block until the messages are done. Copies within this rank are made first. The peers of the messages
  // are ranks of the group.
  void run(Messages messages);
  void run(std::vector<Send> sends, std::vector<Receive> receives);

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
           .deadline = base::RunningClock::now() + options_.timeout,
           .tag = tag_of(sequence, kCheckKind)};
  try {
    if (options_.check_mismatch) check(operation);
    call_.tag = tag_of(sequence, static_cast<int>(operation.kind));
    execute(operation);
  } catch (const std::exception& error) {
    throw Error("{}: {}", call_.label, error.what());
  }
}

void MpiBackend::run(Messages messages) {
  for (const Copy& copy : messages.own) std::memcpy(copy.target, copy.source, copy.bytes);
  run(std::move(messages.sends), std::move(messages.receives));
}

void MpiBackend::run(std::vector<Send> sends, std::vector<Receive> receives) {
  MpiRound round{.context = context_,
                 .tag = call_.tag,
                 .label = call_.label,
                 .deadline = call_.deadline,
                 .timeout = options_.timeout,
                 .sends = std::move(sends),
                 .receives = std::move(receives)};
  for (Send& send : round.sends) send.peer = group_.members[static_cast<std::size_t>(send.peer)];
  for (Receive& receive : round.receives) receive.peer = group_.members[static_cast<std::size_t>(receive.peer)];
  if (!round.sends.empty() || !round.receives.empty()) progress_->exchange(std::move(round));
}

// Compares the calls of all members before any data moves.
void MpiBackend::check(const Operation& operation) {
  const std::vector<std::int64_t> own = to_numbers(operation);
  const auto size = static_cast<std::int64_t>(own.size());
  std::vector<std::int64_t> sizes(group_.members.size());
  std::vector<std::vector<std::int64_t>> theirs(group_.members.size());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  group_.for_each_peer([&](int peer) {
    sends.push_back({.peer = peer, .data = &size, .bytes = sizeof size});
    receives.push_back({.peer = peer, .data = &sizes[static_cast<std::size_t>(peer)], .bytes = sizeof size});
  });
  run(std::move(sends), std::move(receives));
  sends.clear();
  receives.clear();
  group_.for_each_peer([&](int peer) {
    auto& numbers = theirs[static_cast<std::size_t>(peer)];
    numbers.resize(received_length(sizes[static_cast<std::size_t>(peer)], kMaxNumbers, "numbers of its call",
                                   group_.members[static_cast<std::size_t>(peer)]));
    sends.push_back({.peer = peer, .data = own.data(), .bytes = own.size() * sizeof(std::int64_t)});
    receives.push_back({.peer = peer, .data = numbers.data(), .bytes = numbers.size() * sizeof(std::int64_t)});
  });
  run(std::move(sends), std::move(receives));
  group_.for_each_peer([&](int peer) {
    const Operation their_call = from_numbers(theirs[static_cast<std::size_t>(peer)], group_);
    const std::string text = mismatch(group_, group_.rank, operation, peer, their_call);
    if (!text.empty()) throw Error("the calls do not match: {}", text);
  });
}

void MpiBackend::execute(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::all_gather:
    case OperationKind::all_to_all:
    case OperationKind::exchange:
      return run(messages_of(operation, group_));
    case OperationKind::reduce_scatter:
      return reduce(operation);
    case OperationKind::all_reduce:
      return all_reduce(operation);
    case OperationKind::broadcast:
      return broadcast(operation);
    case OperationKind::barrier:
      return barrier();
  }
}

// Receives the parts that parts_to_sum lists and sums them.
void MpiBackend::reduce(const Operation& operation) {
  if (const std::size_t bytes = scratch_bytes(operation, group_); scratch_.size() < bytes)
    scratch_ = base::Buffer(bytes);
  PartsToSum sum = parts_to_sum(operation, group_, scratch_.data());
  run(std::move(sum.messages));
  comm::reduce(operation.recv, sum.parts, operation.type, operation.reduce, sum.count);
}

// Each rank sums one part and sends the sum to all ranks.
void MpiBackend::all_reduce(const Operation& operation) {
  const std::int64_t count = operation.recv_counts[0];
  if (group_.size() == 1) return;
  if (bytes_of(count, operation.type) <= kSmallAllReduce) return reduce(operation);
  const AllReduceHalves halves = halves_of_all_reduce(operation, group_);
  execute(halves.reduce_scatter);
  execute(halves.all_gather);
}

void MpiBackend::broadcast(const Operation& operation) {
  const std::size_t bytes = bytes_of(operation.recv_counts[0], operation.type);
  if (bytes == 0) return;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  if (group_.rank == operation.root)
    group_.for_each_peer([&](int peer) { sends.push_back({.peer = peer, .data = operation.recv, .bytes = bytes}); });
  else
    receives.push_back({.peer = operation.root, .data = operation.recv, .bytes = bytes});
  run(std::move(sends), std::move(receives));
}

void MpiBackend::barrier() {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  group_.for_each_peer([&](int peer) {
    sends.push_back({.peer = peer});
    receives.push_back({.peer = peer});
  });
  run(std::move(sends), std::move(receives));
}

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(std::shared_ptr<MpiProgress> progress, MpiContext context,
                                          const GroupIdentity& identity, const WorldOptions& options) {
  return std::make_unique<MpiBackend>(std::move(progress), context, identity, options);
}

}  // namespace tessera::comm
