#include "tessera/rendezvous/boards/store_board.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPause{2};            // time between two polls of the store
constexpr std::size_t kLongestVersion = 20;  // digits of the number of a status
constexpr milliseconds kInterest{500};       // a rank's status is fetched for this time after a read()

class StoreBoard final : public Board {
 public:
  StoreBoard(std::shared_ptr<Store> store, int rank, int ranks)
      : store_(std::move(store)), rank_(rank), peers_(static_cast<std::size_t>(ranks)), thread_([this] { serve(); }) {}
  ~StoreBoard() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void post(std::string status) override {
    check_status(status, rank_);
    {
      std::lock_guard lock(mutex_);
      peer(rank_).status = status;
      posted_ = std::move(status);
    }
    changed_.notify_one();
  }

  std::string read(int rank) const override {
    check_reader(rank, static_cast<int>(peers_.size()));
    std::lock_guard lock(mutex_);
    const Peer& from = peers_[static_cast<std::size_t>(rank)];
    if (rank != rank_) {
      from.wanted_until = steady_clock::now() + kInterest;
      changed_.notify_one();
    }
    return from.status;
  }

 private:
  struct Peer {
    std::string status;
    std::string version;  // the version of `status` in the store
    mutable steady_clock::time_point wanted_until;
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  static std::string version_key(int rank) { return "version/" + std::to_string(rank); }
  static std::string status_key(int rank) { return "status/" + std::to_string(rank); }

  void serve() {
    try {
      while (look()) {
      }
    } catch (const std::exception&) {
      // The store cannot be reached. Statuses that arrived before are kept.
    }
  }

  // One round: stores the newest status of this rank and fetches the statuses that are read. Returns false when the
  // board is being destroyed.
  bool look() {
    std::optional<std::string> posted;
    std::vector<int> wanted;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || posted_ || is_any_wanted(); });
      posted = std::exchange(posted_, std::nullopt);
      if (closing_ && !posted) return false;
      wanted = wanted_ranks();
    }
    if (posted) {
      store_->set(status_key(rank_), *posted);
      store_->set(version_key(rank_), std::to_string(++version_));
    }
    for (const int rank : wanted) fetch(rank);
    if (!wanted.empty()) pause();
    return true;
  }

  void fetch(int rank) {
    const auto version = store_->find(version_key(rank));
    if (!version || *version == peer(rank).version) return;
    const auto status = store_->find(status_key(rank));
    if (!status || status->size() > kLongestStatus || version->size() > kLongestVersion) return;
    std::lock_guard lock(mutex_);
    peer(rank).version = *version;
    peer(rank).status = *status;
  }

  void pause() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPause, [this] { return closing_ || posted_; });
  }
  std::vector<int> wanted_ranks() const {
    std::vector<int> wanted;
    const auto now = steady_clock::now();
    for (std::size_t rank = 0; rank < peers_.size(); ++rank)
      if (peers_[rank].wanted_until > now) wanted.push_back(static_cast<int>(rank));
    return wanted;
  }
  bool is_any_wanted() const { return !wanted_ranks().empty(); }

  const std::shared_ptr<Store> store_;
  const int rank_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Peer> peers_;  // only thread_ accesses `version`
  std::optional<std::string> posted_;
  std::int64_t version_ = 0;
  bool closing_ = false;
  std::thread thread_;  // the last member: it starts when the others are initialised
};

}  // namespace

std::unique_ptr<Board> make_store_board(std::shared_ptr<Store> store, int rank, int ranks) {
  return std::make_unique<StoreBoard>(std::move(store), rank, ranks);
}

}  // namespace tessera::rendezvous
