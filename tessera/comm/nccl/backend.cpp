#include "tessera/comm/nccl/backend.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/cuda_peer/pushes.h"
#include "tessera/comm/messages.h"
#include "tessera/comm/nccl/staging.h"
#include "tessera/comm/nccl/store_exchange.h"
#include "tessera/comm/reduce.h"
#include "tessera/rendezvous/connecting.h"

namespace tessera::comm {
namespace {

using base::RunningClock;

// In an all_reduce of at most this number of bytes, every rank receives the parts of all ranks and sums them. This
// takes one round instead of two.
constexpr std::size_t kSmallAllReduce = 65536;
// When a communicator is aborted, PeerPushes::release sets flags for at most this time. The flags end the device's
// waits for failed peers.
constexpr std::chrono::seconds kBackendShutdownLimit{20};

std::string to_text(const std::vector<std::int64_t>& numbers) {
  std::string text(numbers.size() * sizeof(std::int64_t), '\0');
  std::memcpy(text.data(), numbers.data(), text.size());
  return text;
}
std::vector<std::int64_t> to_numbers(const std::string& text) {
  std::vector<std::int64_t> numbers(text.size() / sizeof(std::int64_t));
  std::memcpy(numbers.data(), text.data(), numbers.size() * sizeof(std::int64_t));
  return numbers;
}

class NcclBackend final : public Backend {
 public:
  NcclBackend(const NcclMember& member, const WorldOptions& options)
      : member_(member),
        group_(member.group),
        options_(options),
        watch_(std::make_shared<NcclWatch>(member.group, member.key, member.device, member.channel, member.faults)),
        kernels_(quant::make_cuda_kernels(member.device, member.stream)),
        staging_(member.device, member.stream, member.faults),
        calls_(member.store, member.watchdog, "call/" + member.key, group_.rank, group_.size()),
        exchanges_(member.store, member.watchdog, "exchange/" + member.key, group_.rank, group_.size()) {
    member_.watchdog->add(watch_);
  }
  ~NcclBackend() override { member_.watchdog->remove(watch_); }

  void perform(const Operation& operation, base::VirtualClock* clock) override;
  void cancel() override {
    watch_->fail(std::make_exception_ptr(
        Error("{}, rank {}: cancelled, because this rank does not continue", group_.name, group_.world_rank())));
    watch_->abort();
  }
  const quant::Kernels& kernels() const override { return *kernels_; }
  void launch(const std::function<void(base::CudaStream)>& graph, std::chrono::milliseconds expected) override;
  std::string share(std::span<std::byte> memory) override;
  void limit_copies(std::size_t bytes) override {
    longest_copy_ = bytes;
    if (pushes_) pushes_->limit_copies(bytes);
  }

 private:
  // Calls before(), and then body(), which enqueues the work and is watched. `graph` is the argument of
  // NcclWatch::begin. Reports the errors of before() and body() to the watchdog and throws them.
  template <typename Before, typename Body>
  void enqueue(std::string_view what, std::int64_t number, std::optional<std::chrono::milliseconds> graph,
               Before before, Body body);
  std::vector<std::string> exchange(const std::string& own);
  void wait_for_hosts() const;
  void check(const Operation& operation);
  void execute(const Operation& operation);
  void all_gather(const Operation& operation);
  void reduce_scatter(const Operation& operation);
  void all_reduce(const Operation& operation);
  void all_reduce_small(const Operation& operation);
  void sum_integers(const Operation& operation);
  void broadcast(const Operation& operation);
  void barrier();

  void run(Messages messages);
  void run_by_nccl(const std::vector<Send>& sends, const std::vector<Receive>& receives);
  // Gathers `bytes` bytes of every member into `recv`, densely in rank order.
  void gather_equal(const void* send, void* recv, std::size_t bytes);

  const NcclMember member_;
  const GroupIdentity group_;
  const WorldOptions options_;
  const std::shared_ptr<NcclWatch> watch_;
  const std::unique_ptr<quant::Kernels> kernels_;
  NcclStaging staging_;
  NcclStoreExchange calls_, exchanges_;
  std::int64_t sequence_ = 0, launches_ = 0;
  NcclDeadline deadline_;               // deadline of the current operation; only the lane accesses it
  std::shared_ptr<PeerPushes> pushes_;  // null until the first share()
  std::size_t longest_copy_ = PeerPushes::kWholeMessages;
};

template <typename Before, typename Body>
void NcclBackend::enqueue(std::string_view what, std::int64_t number, std::optional<std::chrono::milliseconds> graph,
                          Before before, Body body) {
  try {
    before();
    watch_->begin(what, number, member_.stream, graph);
    body();
    watch_->end(member_.stream);
  } catch (const std::exception& error) {
    const std::string label = fmt::format("{} #{} on {}, rank {}", what, number, group_.name, group_.world_rank());
    std::rethrow_exception(member_.watchdog->report(watch_, label, error.what()));
  }
}

void NcclBackend::perform(const Operation& operation, base::VirtualClock*) {
  deadline_ = RunningClock::now() + options_.timeout;
  const auto before = [&] {
    if (options_.check_mismatch) check(operation);
  };
  const auto body = [&] {
    execute(staging_.to_device(operation, group_));
    staging_.to_host();
  };
  enqueue(name_of(operation.kind), sequence_++, std::nullopt, before, body);
}

void NcclBackend::launch(const std::function<void(base::CudaStream)>& graph, std::chrono::milliseconds expected) {
  enqueue(
      "graph", launches_++, Communicator::kGraphSlack * expected, [] {}, [&] { graph(member_.stream); });
}

// Compares the calls of all members through the store before any data moves.
void NcclBackend::check(const Operation& operation) {
  calls_.exchange(to_text(comm::to_numbers(operation)), deadline_, [&](int peer, const std::string& theirs) {
    const std::string text = mismatch(group_, group_.rank, operation, peer, from_numbers(to_numbers(theirs), group_));
    if (!text.empty()) throw Error("the calls do not match: {}", text);
  });
}

void NcclBackend::execute(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::all_gather:
      return all_gather(operation);
    case OperationKind::all_to_all:
    case OperationKind::exchange:
      return run(messages_of(operation, group_));
    case OperationKind::reduce_scatter:
      return reduce_scatter(operation);
    case OperationKind::all_reduce:
      return all_reduce(operation);
    case OperationKind::broadcast:
      return broadcast(operation);
    case OperationKind::barrier:
      return barrier();
  }
}

void NcclBackend::run(Messages messages) {
  if (pushes_) {
    pushes_->run(messages, [this] { wait_for_hosts(); });
  } else {
    for (const Copy& copy : messages.own) kernels_->copy(copy.source, copy.target, copy.bytes);
  }
  if (!messages.sends.empty() || !messages.receives.empty()) run_by_nccl(messages.sends, messages.receives);
}

void NcclBackend::run_by_nccl(const std::vector<Send>& sends, const std::vector<Receive>& receives) {
  const auto body = [&](const NcclLibrary& nccl, ncclComm_t comm) {
    const auto is_good = [](ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; };
    ncclResult_t result = ncclSuccess;
    for (const Send& one : sends)
      if (is_good(result)) result = nccl.send(one.data, one.bytes, ncclUint8, one.peer, comm, member_.stream);
    for (const Receive& one : receives)
      if (is_good(result)) result = nccl.recv(one.data, one.bytes, ncclUint8, one.peer, comm, member_.stream);
    return result;
  };
  member_.channel->call("ncclSend and ncclRecv", body, deadline_);
}

// Called while this host waits for a mailbox of a peer.
void NcclBackend::wait_for_hosts() const {
  if (auto error = member_.watchdog->failure()) std::rethrow_exception(error);
  if (RunningClock::now() > deadline_) throw Error("time limit of {} ms passed", options_.timeout.count());
  std::this_thread::yield();
}

std::vector<std::string> NcclBackend::exchange(const std::string& own) {
  std::vector<std::string> all(group_.members.size(), own);
  exchanges_.exchange(own, deadline_,
                      [&](int peer, const std::string& theirs) { all[static_cast<std::size_t>(peer)] = theirs; });
  return all;
}

std::string NcclBackend::share(std::span<std::byte> memory) {
  if (group_.size() == 1) return {};
  deadline_ = RunningClock::now() + std::max(options_.timeout, rendezvous::kConnecting);
  const ExchangeFunction exchange_texts = [this](const std::string& own) { return exchange(own); };
  try {
    if (!pushes_) {
      pushes_ = std::make_shared<PeerPushes>(group_, member_.device, member_.stream, exchange_texts);
      pushes_->limit_copies(longest_copy_);
      watch_->at_abort([weak = std::weak_ptr(pushes_)] {
        const auto end = RunningClock::now() + kBackendShutdownLimit;
        if (const auto pushes = weak.lock())
          pushes->release([&] { return pushes.use_count() > 1 && RunningClock::now() < end; });
      });
    }
    return pushes_->share(memory, exchange_texts);
  } catch (const std::exception& error) {
    throw Error("sharing memory on {}, rank {}: {}", group_.name, group_.world_rank(), error.what());
  }
}

void NcclBackend::gather_equal(const void* send, void* recv, std::size_t bytes) {
  if (bytes == 0) return;
  const auto body = [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.all_gather(send, recv, bytes, ncclUint8, comm, member_.stream);
  };
  member_.channel->call("ncclAllGather", body, deadline_);
}

void NcclBackend::all_gather(const Operation& operation) {
  const auto& counts = operation.recv_counts;
  const bool is_even = std::equal(counts.begin() + 1, counts.end(), counts.begin());
  if (is_even && group_.size() > 1 && !pushes_)
    return gather_equal(operation.send, operation.recv, bytes_of(counts[0], operation.type));
  run(messages_of(operation, group_));
}

void NcclBackend::reduce_scatter(const Operation& operation) {
  if (group_.size() == 1)
    return kernels_->copy(operation.send, operation.recv, bytes_of(operation.send_counts[0], operation.type));
  base::Scratch scratch = kernels_->scratch(scratch_bytes(operation, group_));
  PartsToSum sum = parts_to_sum(operation, group_, scratch.data());
  run(std::move(sum.messages));
  reduce(*kernels_, operation.recv, sum.parts, operation.type, operation.reduce, sum.count);
}

void NcclBackend::all_reduce_small(const Operation& operation) {
  const std::int64_t count = operation.recv_counts[0];
  const std::size_t bytes = bytes_of(count, operation.type);
  base::Scratch scratch = kernels_->scratch(bytes * group_.members.size());
  std::byte* const all = scratch.data();
  gather_equal(operation.recv, all, bytes);
  std::vector<const void*> parts;
  for (std::size_t r = 0; r < group_.members.size(); ++r) parts.push_back(all + r * bytes);
  reduce(*kernels_, operation.recv, parts, operation.type, operation.reduce, count);
}

// NCCL may sum integers, because wrapping integers have the same sum in every order.
void NcclBackend::sum_integers(const Operation& operation) {
  const std::int64_t count = operation.recv_counts[0];
  if (count == 0) return;
  const ncclDataType_t type = operation.type == quant::DType::i64 ? ncclUint64 : ncclUint32;
  const auto body = [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.all_reduce(operation.recv, operation.recv, static_cast<std::size_t>(count), type, ncclSum, comm,
                           member_.stream);
  };
  member_.channel->call("ncclAllReduce", body, deadline_);
}

// Each rank sums one part and sends the sum to all ranks.
void NcclBackend::all_reduce(const Operation& operation) {
  const std::int64_t count = operation.recv_counts[0];
  if (group_.size() == 1) return;
  const bool is_integer = operation.type == quant::DType::i32 || operation.type == quant::DType::i64;
  if (is_integer && operation.reduce == ReduceOp::sum) return sum_integers(operation);
  if (bytes_of(count, operation.type) <= kSmallAllReduce) return all_reduce_small(operation);
  const AllReduceHalves halves = halves_of_all_reduce(operation, group_);
  reduce_scatter(halves.reduce_scatter);
  all_gather(halves.all_gather);
}

void NcclBackend::broadcast(const Operation& operation) {
  const std::size_t bytes = bytes_of(operation.recv_counts[0], operation.type);
  if (group_.size() == 1 || bytes == 0) return;
  const auto body = [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.broadcast(operation.recv, operation.recv, bytes, ncclUint8, operation.root, comm, member_.stream);
  };
  member_.channel->call("ncclBroadcast", body, deadline_);
}

void NcclBackend::barrier() {
  if (group_.size() == 1) return;
  constexpr std::size_t token = 16;  // bytes with arbitrary contents
  base::Scratch scratch = kernels_->scratch(token * group_.members.size());
  std::byte* const all = scratch.data();
  gather_equal(all + token * static_cast<std::size_t>(group_.rank), all, token);
}

}  // namespace

std::unique_ptr<Backend> make_nccl_backend(const NcclMember& member, const WorldOptions& options) {
  return std::make_unique<NcclBackend>(member, options);
}

}  // namespace tessera::comm
