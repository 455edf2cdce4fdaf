#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/comm/nccl/store_exchange.h"
#include "tessera/comm/nccl/world.h"
#include "tessera/rendezvous/boards/store_board.h"
#include "tessera/rendezvous/connecting.h"
#include "tessera/rendezvous/rank_text.h"

namespace tessera::comm {
namespace {

using base::RunningClock;
using Groups = std::vector<std::vector<int>>;

constexpr std::chrono::seconds kWorldShutdownLimit{10};

class NcclWorld final : public World {
 public:
  explicit NcclWorld(const NcclOptions& options)
      : options_(options),
        exceptions_(std::uncaught_exceptions()),
        store_(make_prefix_store(options.store->connect(), "nccl/")),
        board_store_(store_->connect()),
        library_(load_nccl(options.nccl_file)),
        watchdog_(std::make_shared<NcclWatchdog>(store_->connect(), options.rank, options.device, options.timeout,
                                                 options.on_failure)),
        arguments_(store_, watchdog_, "arguments", options.rank, options.size) {}
  ~NcclWorld() override {
    if (std::uncaught_exceptions() == exceptions_ && watchdog_->failure() == nullptr) leave();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string_view backend() const override { return "nccl"; }

  std::unique_ptr<Communicator> make_group(const std::string& name, const Groups& groups, Traffic traffic) override {
    const int index = find_group(name, groups, size(), rank());
    const std::int64_t number = made_++;
    const std::string label = fmt::format("make_group {} #{}, rank {}", name, number, rank());
    const auto deadline = RunningClock::now() + std::max(options_.timeout, rendezvous::kConnecting);
    try {
      if (auto error = watchdog_->failure()) std::rethrow_exception(error);
      if (options_.check_mismatch) check(fmt::format("{} {}", name, groups), deadline);
      if (index < 0) return nullptr;
      return make_member(name, groups[static_cast<std::size_t>(index)], fmt::format("{}.{}", number, index), traffic,
                         deadline);
    } catch (const std::exception& error) {
      throw Error("{}: {}", label, error.what());
    }
  }

  std::unique_ptr<rendezvous::Board> make_board() override {
    return make_store_board(make_prefix_store(board_store_, fmt::format("board/{}/", boards_++)), rank(), size());
  }

 private:
  std::unique_ptr<Communicator> make_member(const std::string& name, const std::vector<int>& members,
                                            const std::string& key, Traffic traffic, NcclDeadline deadline) {
    const auto at = std::find(members.begin(), members.end(), rank()) - members.begin();
    GroupIdentity identity{
        .name = rendezvous::group_label(name, members), .rank = static_cast<int>(at), .members = members};
    auto faults = std::make_shared<base::LaneFaults>();
    auto lane = base::make_cuda_lane(identity.name, options_.device, base::LanePriority::high, faults);
    NcclMember member{.group = identity,
                      .key = key,
                      .device = options_.device,
                      .stream = lane->stream(),
                      .faults = std::move(faults),
                      .channel = identity.size() > 1 ? meet(identity, key, traffic, deadline) : nullptr,
                      .watchdog = watchdog_,
                      .store = store_};
    auto backend = make_nccl_backend(member, options_);
    return make_communicator(std::move(identity), std::move(backend), std::move(lane));
  }

  // Connects the group's members. The first member creates the group's id, and the others read it from the store.
  std::shared_ptr<NcclChannel> meet(const GroupIdentity& group, const std::string& key, Traffic traffic,
                                    NcclDeadline deadline) {
    ncclUniqueId id{};
    if (group.rank == 0) {
      const ncclResult_t result = library_->get_unique_id(&id);
      if (result != ncclSuccess) throw Error("ncclGetUniqueId: {}", library_->get_error_string(result));
      store_->set("id/" + key, std::string(id.internal, sizeof id.internal));
    } else {
      const std::string text = watchdog_->await(*store_, "id/" + key, deadline);
      TESSERA_CHECK(text.size() == sizeof id.internal, "the NCCL id in the store has {} bytes", text.size());
      std::copy(text.begin(), text.end(), id.internal);
    }
    return std::make_shared<NcclChannel>(library_, options_.device, group, id, traffic, deadline);
  }

  // Checks that the arguments of all ranks are the same.
  void check(const std::string& arguments, NcclDeadline deadline) {
    arguments_.exchange(arguments, deadline, [&](int peer, const std::string& theirs) {
      if (theirs != arguments) throw Error("rank {} passed {}, rank {} passed {}", rank(), arguments, peer, theirs);
    });
  }

  // Rank 0 leaves last, because it may host the store.
  void leave() {
    try {
      store_->add("left", 1);
      const auto end = RunningClock::now() + kWorldShutdownLimit;
      while (rank() == 0 && store_->add("left", 0) < size() && RunningClock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } catch (const std::exception&) {
      // The store cannot be reached, so there is nothing to wait for.
    }
  }

  const NcclOptions options_;
  const int exceptions_;
  const std::shared_ptr<rendezvous::Store> store_, board_store_;
  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<NcclWatchdog> watchdog_;
  NcclStoreExchange arguments_;
  std::int64_t made_ = 0, boards_ = 0;
};

}  // namespace

bool nccl_available() {
  return true;
}

std::unique_ptr<World> make_nccl_world(const NcclOptions& options) {
  TESSERA_CHECK(options.store != nullptr && options.rank >= 0 && options.rank < options.size,
                "nccl: expected a store and a rank in [0, {}), got rank {}", options.size, options.rank);
  // Disables multicast: a program that dies while it uses multicast may leave the node's GPUs unusable. NCCL reads the
  // variable later.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  // A communicator may serve a graph and a stream at the same time (train/step_graph.h).
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "1", 1);
  // In a graph NCCL would register operands, and expects each to be in one allocation. With libtorch's expandable
  // segments an operand may be in several allocations, and ranks may hang (PyTorch issue 158029).
  setenv("NCCL_GRAPH_REGISTER", "0", 1);
  base::set_device(options.device);
  return std::make_unique<NcclWorld>(options);
}

}  // namespace tessera::comm
