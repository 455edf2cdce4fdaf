#include "tessera/comm/local/world.h"

#include <fmt/ranges.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/backend.h"
#include "tessera/comm/local/group.h"
#include "tessera/comm/local/local_collectives.h"
#include "tessera/rendezvous/boards/local_board.h"
#include "tessera/rendezvous/rank_text.h"

namespace tessera::comm {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception that is not derived from std::exception";
  }
}

using Groups = std::vector<std::vector<int>>;

// The state that the rank threads of one run share.
class LocalJob {
 public:
  LocalJob(int ranks, const LocalOptions& options)
      : ranks_(ranks), options_(options), calls_(rank_slots()), board_calls_(rank_slots()) {
    const auto& link = options_.link;
    if (link && (link->latency_s < 0 || !(link->bytes_per_second > 0)))
      throw InputError(
          "local backend: expected a link with a latency of at least 0 s and above 0 bytes/s, got {} s and {} bytes/s",
          link->latency_s, link->bytes_per_second);
  }

  int ranks() const { return ranks_; }
  const LocalOptions& options() const { return options_; }

  // Only the first failure is recorded. All operations of all groups fail with the recorded failure.
  void fail(int rank, const std::string& what, std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;
    failure_ = std::make_shared<const LocalFailure>(LocalFailure{rank, what, std::move(error)});
    for (const auto& weak : groups_)
      if (auto group = weak.lock()) group->fail(failure_);
  }

  std::exception_ptr first_error() const {
    std::lock_guard lock(mutex_);
    return failure_ == nullptr ? nullptr : failure_->error;
  }

  // Handles the rank's next call of make_group and returns all groups of the call. The first rank that calls the
  // function makes the groups.
  std::vector<std::shared_ptr<LocalGroup>> join(int rank, const std::string& name, const Groups& groups) {
    std::lock_guard lock(mutex_);
    const std::int64_t call = calls_[static_cast<std::size_t>(rank)]++;
    auto [entry, is_first] = made_.try_emplace(call);
    Made& made = entry->second;
    if (is_first) {
      made = Made{.rank = rank, .name = name, .groups = groups};
      for (const auto& members : groups) made.shared.push_back(make(name, members));
    } else if (made.name != name || made.groups != groups) {
      throw Error("make_group, call {}: rank {} passed {} {}, rank {} passed {} {}", call, rank, name, groups,
                  made.rank, made.name, made.groups);
    }
    std::vector<std::shared_ptr<LocalGroup>> result = made.shared;
    if (++made.joined == ranks_) made_.erase(entry);
    return result;
  }

  // Handles the rank's next call of make_board.
  std::shared_ptr<rendezvous::LocalStatuses> join_board(int rank) {
    std::lock_guard lock(mutex_);
    const std::int64_t call = board_calls_[static_cast<std::size_t>(rank)]++;
    auto& [statuses, joined] = boards_[call];
    if (statuses == nullptr) statuses = std::make_shared<rendezvous::LocalStatuses>(ranks_);
    std::shared_ptr<rendezvous::LocalStatuses> result = statuses;
    if (++joined == ranks_) boards_.erase(call);
    return result;
  }

 private:
  struct MadeBoard {
    std::shared_ptr<rendezvous::LocalStatuses> statuses;
    int joined = 0;
  };
  struct Made {
    int rank = 0;  // the rank that called first
    std::string name;
    Groups groups;
    std::vector<std::shared_ptr<LocalGroup>> shared;
    int joined = 0;
  };

  std::vector<std::int64_t> rank_slots() const {
    if (ranks_ < 1) throw InputError("local backend: expected at least 1 rank, got {}", ranks_);
    return std::vector<std::int64_t>(static_cast<std::size_t>(ranks_));
  }

  std::shared_ptr<LocalGroup> make(const std::string& name, const std::vector<int>& members) {
    auto group = std::make_shared<LocalGroup>(rendezvous::group_label(name, members), members, options_.timeout);
    if (failure_ != nullptr) group->fail(failure_);
    std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
    groups_.push_back(group);
    return group;
  }

  const int ranks_;
  const LocalOptions options_;
  mutable std::mutex mutex_;
  std::vector<std::int64_t> calls_;        // number of calls of make_group, by rank
  std::vector<std::int64_t> board_calls_;  // number of calls of make_board, by rank
  std::map<std::int64_t, Made> made_;
  std::map<std::int64_t, MadeBoard> boards_;
  std::vector<std::weak_ptr<LocalGroup>> groups_;
  std::shared_ptr<const LocalFailure> failure_;
};

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::shared_ptr<LocalJob> job, std::shared_ptr<LocalGroup> group, GroupIdentity identity)
      : job_(std::move(job)), group_(std::move(group)), identity_(std::move(identity)) {}
  ~LocalBackend() override {
    if (!cancelled_) group_->leave(identity_.rank);
  }

  void perform(const Operation& operation, base::VirtualClock* clock) override {
    const std::int64_t sequence = sequence_++;
    const auto where = [&] {
      return fmt::format("{} #{} on {}, rank {}", name_of(operation.kind), sequence, identity_.name,
                         identity_.world_rank());
    };
    try {
      meet(operation, sequence, clock);
    } catch (const MemberCancelled&) {
      throw Error("{}: the rank is ending with another error", where());
    } catch (...) {
      const std::string what = fmt::format("{}: {}", where(), message_of(std::current_exception()));
      const auto error = std::make_exception_ptr(Error(what));
      job_->fail(identity_.world_rank(), what, error);
      std::rethrow_exception(error);
    }
  }

  void cancel() override {
    cancelled_ = true;
    group_->cancel(identity_.rank);
  }

 private:
  void meet(const Operation& operation, std::int64_t sequence, base::VirtualClock* clock) {
    const auto& inject = job_->options().inject;
    if (inject) inject(identity_.world_rank(), identity_.name, std::string(name_of(operation.kind)), sequence);
    MatchedOperation matched(*group_, identity_.rank, sequence, operation, clock == nullptr ? 0 : clock->now());
    const LocalCall call{.matched = matched, .own = operation, .group = identity_, .scratch = scratch_};
    // A link's time depends on the calls of all members, so a link needs the last wait.
    const bool is_over =
        matched.start([&] { return !job_->options().link && execute_together(call, job_->options().small_bytes); });
    if (is_over) {
      if (clock != nullptr) clock->raise_to(matched.begin());
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int peer = 0; peer < identity_.size(); ++peer) {
      if (peer == identity_.rank) continue;
      const std::string text = mismatch(identity_, identity_.rank, operation, peer, matched.operation_of(peer));
      if (!text.empty()) throw Error("the calls do not match: {}", text);
    }
    execute(call);
    const double virtual_begin = matched.begin(), link = link_seconds(matched);
    matched.finish();
    const std::chrono::duration<double> pause(link);
    if (clock != nullptr)
      clock->raise_to(virtual_begin + link);
    else if (link > 0)
      group_->sleep_until(identity_.rank,
                          begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(pause));
  }

  double link_seconds(const MatchedOperation& matched) const {
    const auto& link = job_->options().link;
    if (!link || identity_.size() == 1) return 0;
    GroupIdentity member = identity_;
    std::int64_t most = 0;
    for (member.rank = 0; member.rank < member.size(); ++member.rank)
      most = std::max(most, received_bytes(matched.operation_of(member.rank), member));
    return link->seconds(most);
  }

  std::shared_ptr<LocalJob> job_;
  std::shared_ptr<LocalGroup> group_;
  GroupIdentity identity_;
  std::int64_t sequence_ = 0;  // number of the next operation; only the lane accesses it
  base::Buffer scratch_;       // only the lane accesses it
  bool cancelled_ = false;     // only the owner accesses it
};

class LocalWorld final : public World {
 public:
  LocalWorld(std::shared_ptr<LocalJob> job, int rank)
      : job_(std::move(job)),
        rank_(rank),
        clock_(job_->options().virtual_clock ? std::make_shared<base::VirtualClock>() : nullptr) {}

  int rank() const override { return rank_; }
  int size() const override { return job_->ranks(); }
  std::string_view backend() const override { return "local"; }

  std::unique_ptr<Communicator> make_group(const std::string& name, const Groups& groups, Traffic) override {
    const int index = find_group(name, groups, size(), rank_);
    const auto made = job_->join(rank_, name, groups);
    if (index < 0) return nullptr;
    const auto& group = made[static_cast<std::size_t>(index)];
    const auto& members = group->members();
    const auto at = std::find(members.begin(), members.end(), rank_) - members.begin();
    GroupIdentity identity{.name = group->name(), .rank = static_cast<int>(at), .members = members};
    auto backend = std::make_unique<LocalBackend>(job_, group, identity);
    return make_communicator(std::move(identity), std::move(backend), clock_);
  }
  std::unique_ptr<rendezvous::Board> make_board() override { return make_local_board(job_->join_board(rank_), rank_); }
  std::shared_ptr<base::VirtualClock> clock() const override { return clock_; }

 private:
  std::shared_ptr<LocalJob> job_;
  int rank_;
  std::shared_ptr<base::VirtualClock> clock_;
};

// Returns whether the body threw.
bool run_rank(const std::shared_ptr<LocalJob>& job, int rank, const std::function<void(World&)>& body) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).substr(0, 15).c_str());
  try {
    LocalWorld world(job, rank);
    body(world);
    return false;
  } catch (...) {
    job->fail(rank, message_of(std::current_exception()), std::current_exception());
    return true;
  }
}

}  // namespace

void run_local(int ranks, const LocalOptions& options, const std::function<void(World&)>& body) {
  const auto job = std::make_shared<LocalJob>(ranks, options);
  std::vector<char> threw(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { threw[static_cast<std::size_t>(rank)] = run_rank(job, rank, body); });
  } catch (const std::system_error& error) {
    const auto rank = static_cast<int>(threads.size());
    const Error refused("local backend: cannot start a thread for rank {} of {}: {}", rank, ranks, error.what());
    job->fail(rank, refused.what(), std::make_exception_ptr(refused));
    threw[static_cast<std::size_t>(rank)] = true;
  }
  for (std::thread& thread : threads) thread.join();
  if (std::find(threw.begin(), threw.end(), 1) != threw.end()) std::rethrow_exception(job->first_error());
}

}  // namespace tessera::comm
