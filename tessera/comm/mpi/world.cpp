#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "tessera/base/error.h"
#include "tessera/comm/mpi/backend.h"
#include "tessera/comm/mpi/board_messages.h"
#include "tessera/comm/mpi/progress_thread.h"
#include "tessera/comm/mpi/world.h"
#include "tessera/rendezvous/rank_text.h"

namespace tessera::comm {
namespace {

using Groups = std::vector<std::vector<int>>;

class MpiWorld final : public World {
 public:
  MpiWorld(const WorldOptions& options, std::chrono::milliseconds connecting, std::optional<bool> takes_part)
      : options_(options),
        exceptions_(std::uncaught_exceptions()),
        progress_(std::make_shared<MpiProgress>(options.timeout, connecting, takes_part)) {}
  ~MpiWorld() override {
    if (std::uncaught_exceptions() > exceptions_) progress_->abandon();
  }

  int rank() const override { return progress_->rank(); }
  int size() const override { return progress_->size(); }
  std::string_view backend() const override { return "mpi"; }

  std::unique_ptr<Communicator> make_group(const std::string& name, const Groups& groups, Traffic) override {
    const int index = find_group(name, groups, size(), rank());
    const std::string label = fmt::format("make_group {} #{}, rank {}", name, made_++, rank());
    const auto deadline = base::RunningClock::now() + options_.timeout;
    MpiContext context = 0;
    try {
      context = progress_->duplicate_world(label, deadline, options_.timeout);
      if (options_.check_mismatch) check(label, deadline, context, fmt::format("{} {}", name, groups));
    } catch (const std::exception& error) {
      throw Error("{}: {}", label, error.what());
    }
    if (index < 0) return nullptr;
    const auto& members = groups[static_cast<std::size_t>(index)];
    const auto at = std::find(members.begin(), members.end(), rank()) - members.begin();
    GroupIdentity identity{
        .name = rendezvous::group_label(name, members), .rank = static_cast<int>(at), .members = members};
    auto backend = make_mpi_backend(progress_, context, identity, options_);
    return make_communicator(std::move(identity), std::move(backend));
  }

  std::unique_ptr<rendezvous::Board> make_board() override {
    if (board_messages_ == nullptr) {
      const std::string label = fmt::format("make_board, rank {}", rank());
      const auto deadline = base::RunningClock::now() + options_.timeout;
      board_messages_ = std::make_shared<MpiBoardMessages>(rank(), size());
      try {
        progress_->serve_boards(board_messages_, progress_->duplicate_world(label, deadline, options_.timeout));
      } catch (const std::exception& error) {
        throw Error("{}: {}", label, error.what());
      }
    }
    return make_mpi_board(board_messages_);
  }

 private:
  // Checks that the arguments of all ranks have the same hash.
  void check(const std::string& label, MpiDeadline deadline, MpiContext context, const std::string& arguments) {
    const std::size_t own = std::hash<std::string>{}(arguments);
    std::vector<std::size_t> theirs(static_cast<std::size_t>(size()), own);
    MpiRound round{.context = context, .label = label, .deadline = deadline, .timeout = options_.timeout};
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      round.sends.push_back({.peer = peer, .data = &own, .bytes = sizeof own});
      round.receives.push_back({.peer = peer, .data = &theirs[static_cast<std::size_t>(peer)], .bytes = sizeof own});
    }
    progress_->exchange(std::move(round));
    for (int peer = 0; peer < size(); ++peer)
      if (theirs[static_cast<std::size_t>(peer)] != own)
        throw Error("rank {} passed {}, rank {} passed other arguments", rank(), arguments, peer);
  }

  const WorldOptions options_;
  const int exceptions_;
  std::shared_ptr<MpiProgress> progress_;
  std::shared_ptr<MpiBoardMessages> board_messages_;  // null until the first make_board
  std::int64_t made_ = 0;
};

}  // namespace

bool mpi_available() {
  return true;
}

std::unique_ptr<World> make_mpi_world(const WorldOptions& options, std::chrono::milliseconds connecting,
                                      std::optional<bool> takes_part) {
  return std::make_unique<MpiWorld>(options, connecting, takes_part);
}

void abort_mpi(int exit_code) {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised != 0 && finalised == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace tessera::comm
