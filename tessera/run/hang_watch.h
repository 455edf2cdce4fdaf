// Reports which rank hangs, and prints what each rank does when a user asks.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tessera/rendezvous/states/hung_ranks.h"
#include "tessera/run/run_setup.h"

namespace tessera::run {

// Belongs to the process of one rank. Rank 0 learns the states of all ranks, and the other ranks learn that of rank 0
// (PeerWatch::Options::line). After the first report of a time limit, rank 0 waits until the states of the other ranks
// have arrived, then prints which rank hangs, and the command that continues without it. If rank 0 does not answer,
// rank 1 does this. Any thread may call the functions.
class HangWatch {
 public:
  HangWatch(const RunSetup& setup, int rank, int ranks) : setup_(setup), rank_(rank), reports_(ranks) {}

  // Returns the state of this rank if it is due: twice a second, and when its phase has changed. Otherwise returns an
  // empty text.
  std::string line();
  void received(int rank, const std::string& line);
  // Prints the table if SIGUSR2 has arrived, and on rank 0 which rank hangs. Called about 10 times a second.
  void tick();
  // Called when this rank ends with an error. If it has waited until the time limit, appends the error to
  // RUN/logs/rank-N.txt, and takes a few seconds, in which the hung rank is found. Returns whether the hung rank was
  // reported, so that the error itself need not be printed.
  bool report(std::string_view error);

 private:
  using WatchClock = std::chrono::steady_clock;
  struct Known {
    std::optional<rendezvous::RankState> state;
    WatchClock::time_point at;
  };
  // The reports of all ranks. A rank answers if its state has arrived after `since`. The caller holds mutex_.
  std::vector<rendezvous::RankReport> reports(WatchClock::time_point since);
  void take_own();
  void print_table_if_requested();
  void print_hung(const std::vector<rendezvous::RankReport>& reports, const std::vector<int>& hung) const;

  const RunSetup& setup_;
  const int rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Known> reports_;  // by rank
  std::optional<WatchClock::time_point> first_time_limit_;
  bool is_reported_ = false;
  std::int64_t seen_requests_ = 0;
  WatchClock::time_point next_table_{}, next_line_{};
  std::string sent_phase_;
};

// Prints the states of the ranks of this process after SIGUSR2, for processes whose ranks are threads.
class TablePrinter {
 public:
  TablePrinter();

 private:
  std::jthread thread_;
};

}  // namespace tessera::run
