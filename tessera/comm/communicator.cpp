#include "tessera/comm/communicator.h"

#include <exception>

#include "tessera/base/error.h"
#include "tessera/comm/backend.h"

namespace tessera::comm {
namespace {

using base::Fence;
using quant::DType;
using Counts = std::span<const std::int64_t>;

std::vector<std::int64_t> copy_of(Counts counts) {
  return {counts.begin(), counts.end()};
}

class LaneCommunicator final : public Communicator {
 public:
  LaneCommunicator(GroupIdentity identity, std::unique_ptr<Backend> backend, std::unique_ptr<base::Lane> lane)
      : identity_(std::move(identity)),
        exceptions_(std::uncaught_exceptions()),
        backend_(std::move(backend)),
        lane_(std::move(lane)) {}

  ~LaneCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_) backend_->cancel();
  }

  int rank() const override { return identity_.rank; }
  int size() const override { return identity_.size(); }
  const std::string& name() const override { return identity_.name; }
  base::Lane& lane() override { return *lane_; }
  const quant::Kernels& kernels() const override { return backend_->kernels(); }

  Fence all_gather(const void* send, void* recv, Counts counts, DType type) override {
    return start({.kind = OperationKind::all_gather,
                  .type = type,
                  .send = send,
                  .recv = recv,
                  .send_counts = {},
                  .recv_counts = copy_of(counts)});
  }
  Fence all_to_all(const void* send, Counts send_counts, void* recv, Counts recv_counts, DType type) override {
    return start({.kind = OperationKind::all_to_all,
                  .type = type,
                  .send = send,
                  .recv = recv,
                  .send_counts = copy_of(send_counts),
                  .recv_counts = copy_of(recv_counts)});
  }
  Fence reduce_scatter(const void* send, void* recv, Counts counts, DType type, ReduceOp op) override {
    return start({.kind = OperationKind::reduce_scatter,
                  .type = type,
                  .reduce = op,
                  .send = send,
                  .recv = recv,
                  .send_counts = copy_of(counts)});
  }
  Fence all_reduce(void* data, std::int64_t count, DType type, ReduceOp op) override {
    return start({.kind = OperationKind::all_reduce, .type = type, .reduce = op, .recv = data, .recv_counts = {count}});
  }
  Fence broadcast(void* data, std::int64_t count, DType type, int root) override {
    return start({.kind = OperationKind::broadcast, .type = type, .root = root, .recv = data, .recv_counts = {count}});
  }
  Fence barrier() override { return start({.kind = OperationKind::barrier}); }
  Fence exchange(std::vector<Send> sends, std::vector<Receive> receives) override {
    return start({.kind = OperationKind::exchange, .sends = std::move(sends), .receives = std::move(receives)});
  }
  std::string share(std::span<std::byte> memory) override {
    lane_->record().synchronize();
    return backend_->share(memory);
  }
  void limit_copies(std::size_t bytes) override {
    lane_->record().synchronize();
    backend_->limit_copies(bytes);
  }
  Fence launch(std::function<void(base::CudaStream)> graph, std::chrono::milliseconds expected) override {
    lane_->run([backend = backend_.get(), graph = std::move(graph), expected] { backend->launch(graph, expected); });
    return lane_->record();
  }
  void cancel() override { backend_->cancel(); }

 private:
  Fence start(Operation operation) {
    check_arguments(operation, identity_);
    lane_->run([backend = backend_.get(), operation = std::move(operation), clock = lane_->clock()] {
      backend->perform(operation, clock);
    });
    return lane_->record();
  }

  GroupIdentity identity_;
  int exceptions_;
  std::unique_ptr<Backend> backend_;
  // The last member, because its destructor must run first: it finishes the queued work.
  std::unique_ptr<base::Lane> lane_;
};

}  // namespace

void Backend::launch(const std::function<void(base::CudaStream)>&, std::chrono::milliseconds) {
  throw Error("launch of a graph: expected a communicator of GPUs");
}

std::unique_ptr<Communicator> make_communicator(GroupIdentity identity, std::unique_ptr<Backend> backend,
                                                std::shared_ptr<base::VirtualClock> host) {
  auto lane = base::make_thread_lane(fmt::format("{}.{}", identity.name.substr(0, 10), identity.rank), std::move(host));
  return make_communicator(std::move(identity), std::move(backend), std::move(lane));
}

std::unique_ptr<Communicator> make_communicator(GroupIdentity identity, std::unique_ptr<Backend> backend,
                                                std::unique_ptr<base::Lane> lane) {
  return std::make_unique<LaneCommunicator>(std::move(identity), std::move(backend), std::move(lane));
}

std::vector<std::int64_t> equal_counts(int ranks, std::int64_t count) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), count);
}

int find_group(const std::string& name, const std::vector<std::vector<int>>& groups, int world_size, int rank) {
  std::vector<bool> seen(static_cast<std::size_t>(world_size));
  int found = -1;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].empty()) throw Error("make_group {}: group {} is empty", name, g);
    for (const int member : groups[g]) {
      if (member < 0 || member >= world_size)
        throw Error("make_group {}: expected ranks in [0, {}), got {}", name, world_size, member);
      if (seen[static_cast<std::size_t>(member)]) throw Error("make_group {}: rank {} is given twice", name, member);
      seen[static_cast<std::size_t>(member)] = true;
      if (member == rank) found = static_cast<int>(g);
    }
  }
  return found;
}

}  // namespace tessera::comm
