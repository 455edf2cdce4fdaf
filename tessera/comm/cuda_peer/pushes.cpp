#include "tessera/comm/cuda_peer/pushes.h"

#include <cuda.h>

#include <chrono>
#include <thread>
#include <utility>

#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"
#include "tessera/comm/peer_queues.h"
#include "tessera/rendezvous/host.h"

namespace tessera::comm {
namespace {

// Large enough to be a separate allocation, which IPC handles need.
constexpr std::size_t kFlagBytes = std::size_t{2} << 20;
constexpr std::size_t kFlagStride = 64;

// Collects flag operations of a stream, and enqueues them in one driver call.
class FlagBatch {
 public:
  explicit FlagBatch(base::CudaStream stream) : stream_(stream) {}

  // All earlier work on the stream is visible to a rank that sees the flag.
  void set(std::byte* flag) { write(flag, 1); }
  void await_and_reset(std::byte* flag) {
    CUstreamBatchMemOpParams one{};
    one.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    one.waitValue.address = reinterpret_cast<CUdeviceptr>(flag);
    one.waitValue.value = 1;
    one.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    operations_.push_back(one);
    write(flag, 0);
  }
  void enqueue() {
    if (operations_.empty()) return;
    const CUresult result =
        entry()(stream_, static_cast<unsigned>(operations_.size()), operations_.data(), /*flags=*/0);
    if (result != CUDA_SUCCESS) throw Error("cuStreamBatchMemOp: error {}", static_cast<int>(result));
    operations_.clear();
  }

 private:
  using Function = CUresult(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);

  void write(std::byte* flag, cuuint32_t value) {
    CUstreamBatchMemOpParams one{};
    one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.address = reinterpret_cast<CUdeviceptr>(flag);
    one.writeValue.value = value;
    one.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    operations_.push_back(one);
  }
  // The driver library is not linked, so that machines without it can build and test this code.
  static Function* entry() {
    static Function* const function = [] {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult status{};
      TESSERA_CUDA_CHECK(
          cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &found, 12000, cudaEnableDefault, &status));
      TESSERA_CHECK(status == cudaDriverEntryPointSuccess && found != nullptr, "the driver has no cuStreamBatchMemOp");
      return reinterpret_cast<Function*>(found);
    }();
    return function;
  }

  const base::CudaStream stream_;
  std::vector<CUstreamBatchMemOpParams> operations_;
};

// `own[r]` states whether this rank can write to the memory of member r. Returns, for each member, whether this rank
// and the member can write to each other's memory.
std::vector<bool> mutually(const std::vector<bool>& own, int rank, const ExchangeFunction& exchange) {
  std::string text;
  for (const bool can : own) text.push_back(can ? '1' : '0');
  const std::vector<std::string> all = exchange(text);
  std::vector<bool> both = own;
  for (std::size_t peer = 0; peer < both.size(); ++peer)
    both[peer] = both[peer] && all[peer].size() == own.size() && all[peer][static_cast<std::size_t>(rank)] == '1';
  return both;
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  TESSERA_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

}  // namespace

PeerPushes::PeerPushes(const GroupIdentity& group, base::Device device, base::CudaStream stream,
                       const ExchangeFunction& exchange)
    : group_(group),
      device_(device),
      stream_(stream),
      flag_buffer_(kFlagBytes, device),
      own_mailbox_(PeerMailbox::create("tessera", group.size())),
      mailboxes_(group.members.size()),
      direct_(group.members.size()) {
  const base::DeviceGuard guard(device_);
  const std::string host = rendezvous::host_identity();
  const std::vector<std::string> hosts = exchange(host), names = exchange(own_mailbox_->name());
  group_.for_each_peer([&](int rank) {
    const std::size_t peer = index(rank);
    const std::string pair = fmt::format("rank {} and rank {}", group_.world_rank(), group_.members[peer]);
    if (hosts[peer] != host) {
      problem_ = pair + " are on different hosts";
      return;
    }
    try {
      mailboxes_[peer] = PeerMailbox::open(names[peer], group_.size());
      direct_[peer] = true;
    } catch (const Error& error) {
      problem_ = fmt::format("{}: {}", pair, error.what());
    }
  });
  flag_buffer_.fill_zero();
  flags_ = std::make_unique<PeerMemory>(group_, device_, std::span(flag_buffer_.data(), flag_buffer_.size()), direct_,
                                        exchange);
  if (!flags_->problem().empty()) problem_ = flags_->problem();
  for (std::size_t peer = 0; peer < direct_.size(); ++peer)
    direct_[peer] = direct_[peer] && flags_->can_reach(static_cast<int>(peer));
  direct_ = mutually(direct_, group_.rank, exchange);
  own_mailbox_->unlink();
  int least = 0, greatest = 0;
  TESSERA_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (int rank = 0; rank < group_.size(); ++rank) {
    cudaStream_t copies = nullptr;
    TESSERA_CUDA_CHECK(cudaStreamCreateWithPriority(&copies, cudaStreamNonBlocking, greatest));
    streams_.push_back(copies);
    may_begin_.push_back(make_event());
    copied_.push_back(make_event());
  }
  pushes_.assign(direct_.size(), false);
}

PeerPushes::~PeerPushes() {
  for (const cudaEvent_t event : may_begin_) cudaEventDestroy(event);
  for (const cudaEvent_t event : copied_) cudaEventDestroy(event);
  for (const base::CudaStream stream : streams_) cudaStreamDestroy(stream);
}

std::string PeerPushes::share(std::span<std::byte> memory, const ExchangeFunction& exchange) {
  // Every member unmaps before any member frees its memory; the following exchanges ensure this order.
  shared_ = nullptr;
  pushes_.assign(direct_.size(), false);
  shared_ = std::make_unique<PeerMemory>(group_, device_, memory, direct_, exchange);
  std::vector<bool> can = direct_;
  for (std::size_t peer = 0; peer < can.size(); ++peer)
    can[peer] = can[peer] && shared_->can_reach(static_cast<int>(peer));
  pushes_ = mutually(can, group_.rank, exchange);
  pushes_[index(group_.rank)] = true;
  return shared_->problem().empty() ? problem_ : shared_->problem();
}

std::byte* PeerPushes::flag(int holder, Flag kind, int setter) {
  std::byte* base = holder == group_.rank ? flag_buffer_.data() : flags_->of(holder);
  return base + (index(setter) * 2 + (kind == Flag::free ? 0 : 1)) * kFlagStride;
}

Destination PeerPushes::target_of(const Receive& receive) const {
  const std::span<std::byte> own = shared_->own();
  const auto* target = static_cast<const std::byte*>(receive.data);
  const bool inside = target >= own.data() && target + receive.bytes <= own.data() + own.size();
  return {.offset = inside ? target - own.data() : Destination::kNowhere,
          .bytes = static_cast<std::int64_t>(receive.bytes)};
}

// Posts the destination of a message to its sender. Returns false if the mailbox is full, because the sender has taken
// too few earlier destinations. Appends the message to `others` if it cannot be pushed.
bool PeerPushes::post(const Receive& receive, Agreed& agreed, std::vector<Receive>& others) {
  const Destination target = target_of(receive);
  if (!own_mailbox_->try_post(receive.peer, target)) return false;
  if (target.offset == Destination::kNowhere)
    others.push_back(receive);
  else
    agreed.receives_from[index(receive.peer)] = true;
  return true;
}

// Takes the destination of a message from the mailbox. Returns false if the receiver has not posted the destination
// yet. Appends the message to `others` if it cannot be pushed.
bool PeerPushes::take(const Send& send, Agreed& agreed, std::vector<Send>& others) {
  const std::size_t peer = index(send.peer);
  const std::optional<Destination> target = mailboxes_[peer]->try_take(group_.rank);
  if (!target) return false;
  if (target->bytes != static_cast<std::int64_t>(send.bytes))
    throw Error("rank {} sends {} bytes to rank {}, which expects {}", group_.world_rank(), send.bytes,
                group_.members[peer], target->bytes);
  if (target->offset == Destination::kNowhere)
    others.push_back(send);
  else
    agreed.copies[peer].push_back({send.data, shared_->of(send.peer) + target->offset, send.bytes});
  return true;
}

// Alternates between posting and taking destinations, because a mailbox has limited space. Removes the messages that
// are pushed from `messages`.
PeerPushes::Agreed PeerPushes::agree(Messages& messages, const WhileWaiting& while_waiting) {
  Agreed agreed{.copies = std::vector<std::vector<Copy>>(group_.members.size()),
                .receives_from = std::vector<bool>(group_.members.size())};
  Messages others;
  PeerQueues<Receive> receives(messages.receives, group_.members.size());
  PeerQueues<Send> sends(messages.sends, group_.members.size());
  const auto goes_this_way = [&](int peer) { return static_cast<bool>(pushes_[index(peer)]); };
  receives.move_out(goes_this_way, others.receives);
  sends.move_out(goes_this_way, others.sends);
  exchange_alternately(
      receives, sends, [&](const Receive& one) { return post(one, agreed, others.receives); },
      [&](const Send& one) { return take(one, agreed, others.sends); }, while_waiting);
  messages.receives = std::move(others.receives);
  messages.sends = std::move(others.sends);
  return agreed;
}

void PeerPushes::run(Messages& messages, const WhileWaiting& while_waiting) {
  Agreed agreed = agree(messages, while_waiting);
  agreed.copies[index(group_.rank)] = std::exchange(messages.own, {});
  enqueue(agreed.copies, agreed.receives_from);
}

void PeerPushes::enqueue_copies(std::size_t rank, const std::vector<Copy>& copies) {
  TESSERA_CUDA_CHECK(cudaEventRecord(may_begin_[rank], stream_));
  TESSERA_CUDA_CHECK(cudaStreamWaitEvent(streams_[rank], may_begin_[rank], 0));
  for (const Copy& copy : divided_copies(copies, longest_copy_))
    TESSERA_CUDA_CHECK(cudaMemcpyAsync(copy.target, copy.source, copy.bytes, cudaMemcpyDefault, streams_[rank]));
  TESSERA_CUDA_CHECK(cudaEventRecord(copied_[rank], streams_[rank]));
}

void PeerPushes::enqueue(const std::vector<std::vector<Copy>>& copies, const std::vector<bool>& receives_from) {
  const base::DeviceGuard guard(device_);
  const int own = group_.rank;
  FlagBatch flags(stream_);
  const auto has_copies = [&](int rank) { return !copies[index(rank)].empty(); };

  if (has_copies(own)) enqueue_copies(index(own), copies[index(own)]);
  group_.for_each_peer([&](int peer) {
    if (receives_from[index(peer)]) flags.set(flag(peer, Flag::free, own));
  });
  flags.enqueue();
  group_.for_each_peer([&](int peer) {
    if (!has_copies(peer)) return;
    flags.await_and_reset(flag(own, Flag::free, peer));
    flags.enqueue();
    enqueue_copies(index(peer), copies[index(peer)]);
  });
  group_.for_each_peer([&](int peer) {
    if (!has_copies(peer)) return;
    TESSERA_CUDA_CHECK(cudaStreamWaitEvent(stream_, copied_[index(peer)], 0));
    flags.set(flag(peer, Flag::arrived, own));
    flags.enqueue();
  });
  group_.for_each_peer([&](int peer) {
    if (receives_from[index(peer)]) flags.await_and_reset(flag(own, Flag::arrived, peer));
  });
  flags.enqueue();
  if (has_copies(own)) TESSERA_CUDA_CHECK(cudaStreamWaitEvent(stream_, copied_[index(own)], 0));
}

void PeerPushes::release(const std::function<bool()>& keep_running) {
  const base::DeviceGuard guard(device_);
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return;
  // Writes 1 to all flags repeatedly, because operations that are already enqueued reset them.
  const std::vector<std::uint32_t> ones(group_.members.size() * 2 * kFlagStride / sizeof(std::uint32_t), 1);
  while (keep_running()) {
    if (cudaMemcpyAsync(flag_buffer_.data(), ones.data(), ones.size() * sizeof ones[0], cudaMemcpyHostToDevice,
                        stream) != cudaSuccess)
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  cudaStreamDestroy(stream);
}

}  // namespace tessera::comm
