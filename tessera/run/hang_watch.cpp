#include "tessera/run/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tessera/launch/failure_line.h"
#include "tessera/run/lost_report.h"

namespace tessera::run {
namespace {

// The time from the first report of a time limit until the hung rank is named. A rank that answers sends four states in
// this time.
constexpr std::chrono::milliseconds kCollecting{2000};
// The time after its own report when rank 1 reports that rank 0 does not answer, and when a rank ends in any case.
constexpr std::chrono::milliseconds kRank0Silent{2500}, kEnding{4500};
constexpr std::chrono::milliseconds kOneTable{
    2000};  // requests within this time are one request: a launcher signals every rank
constexpr std::chrono::milliseconds kRequestSeen{100}, kLineEvery{500};

// Returns whether this rank itself has waited until the time limit. Other errors contain this text with the number of
// another rank.
bool is_own_time_limit(int rank, std::string_view error) {
  return error.find(fmt::format("rank {}: time limit of", rank)) != std::string_view::npos;
}

void append_to_log(const std::filesystem::path& out, int rank, std::string_view error) {
  std::error_code ignored;
  std::filesystem::create_directories(out / "logs", ignored);
  std::ofstream log(out / "logs" / fmt::format("rank-{}.txt", rank), std::ios::app);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S", &local);
  log << fmt::format("{} {}\n", time.data(), launch::failure_line(rank, error));
  for (const rendezvous::RankState& state : rendezvous::own_states())
    log << fmt::format("  host {}, process {}: {}\n", state.host, state.process, state_text(state));
}

}  // namespace

std::string HangWatch::line() {
  const std::vector<rendezvous::RankState> states = rendezvous::own_states();
  const std::lock_guard lock(mutex_);
  const auto now = WatchClock::now();
  if (states.empty() || (now < next_line_ && states.front().phase == sent_phase_)) return {};
  next_line_ = now + kLineEvery;
  sent_phase_ = states.front().phase;
  return to_line(states.front());
}

void HangWatch::received(int rank, const std::string& line) {
  std::optional<rendezvous::RankState> state = rendezvous::parse_state(line);
  if (!state) return;
  const std::lock_guard lock(mutex_);
  reports_.at(static_cast<std::size_t>(rank)) = {.state = std::move(state), .at = WatchClock::now()};
}

void HangWatch::take_own() {
  const std::vector<rendezvous::RankState> states = rendezvous::own_states();
  if (!states.empty()) reports_[static_cast<std::size_t>(rank_)] = {.state = states.front(), .at = WatchClock::now()};
}

std::vector<rendezvous::RankReport> HangWatch::reports(WatchClock::time_point since) {
  take_own();
  std::vector<rendezvous::RankReport> all;
  for (const Known& known : reports_) {
    rendezvous::RankReport& report = all.emplace_back();
    report.state = known.state;
    report.answers = known.state && known.at > since;
    if (known.state) report.state->seconds += std::chrono::duration<double>(WatchClock::now() - known.at).count();
  }
  return all;
}

void HangWatch::print_table_if_requested() {
  std::int64_t requests = 0;
  for (const Known& known : reports_) requests += known.state ? known.state->table_requests : 0;
  const auto now = WatchClock::now();
  if (requests == std::exchange(seen_requests_, requests) || now < next_table_) return;
  next_table_ = now + kOneTable;
  fmt::print(stderr, "{}", rendezvous::table_text(reports(now - kCollecting)));
  std::fflush(stderr);
}

void HangWatch::print_hung(const std::vector<rendezvous::RankReport>& all, const std::vector<int>& hung) const {
  const auto limit_ms = static_cast<std::int64_t>(setup_.run->timeout_s * 1000);
  fmt::print(stderr, "{}", rendezvous::hung_text(all, hung, limit_ms));
  if (!hung.empty()) report_continuation(setup_, hung);
  fmt::print(stderr, "tessera: the lines of the waiting ranks are in {}\n", (setup_.run->out + "/logs"));
  std::fflush(stderr);
}

void HangWatch::tick() {
  const std::lock_guard lock(mutex_);
  take_own();
  if (rank_ > 0) return;
  print_table_if_requested();
  const auto now = WatchClock::now();
  if (!first_time_limit_ &&
      std::ranges::any_of(reports_, [](const Known& known) { return known.state && known.state->timed_out; }))
    first_time_limit_ = now;
  if (is_reported_ || !first_time_limit_ || now - *first_time_limit_ < kCollecting) return;
  const std::vector<rendezvous::RankReport> all = reports(*first_time_limit_);
  print_hung(all, rendezvous::hung_ranks(all));
  is_reported_ = true;
  changed_.notify_all();
}

bool HangWatch::report(std::string_view error) {
  if (error.find("time limit of") == std::string_view::npos) return false;
  const auto begin = WatchClock::now();
  append_to_log(setup_.run->out, rank_, error);
  if (is_own_time_limit(rank_, error)) rendezvous::note_time_limit(rank_);
  std::unique_lock lock(mutex_);
  if (rank_ == 0) {
    changed_.wait_for(lock, kEnding, [this] { return is_reported_; });
    return is_reported_;
  }
  const auto silent = [&] { return reports_[0].at <= begin; };
  if (!reports_[0].state) return false;  // this rank is not connected to rank 0
  if (rank_ == 1) {
    changed_.wait_for(lock, kRank0Silent, [] { return false; });
    if (silent()) {
      print_hung(reports(begin), {0});
      return true;
    }
  }
  changed_.wait_until(lock, begin + kEnding, [] { return false; });
  return !silent();
}

TablePrinter::TablePrinter()
    : thread_([](const std::stop_token& stop) {
        for (std::int64_t seen = 0; !stop.stop_requested(); std::this_thread::sleep_for(kRequestSeen)) {
          if (rendezvous::table_requests() == seen) continue;
          seen = rendezvous::table_requests();
          std::vector<rendezvous::RankReport> all;
          for (const rendezvous::RankState& state : rendezvous::own_states())
            all.push_back({.state = state, .answers = true});
          fmt::print(stderr, "{}", rendezvous::table_text(all));
          std::fflush(stderr);
        }
      }) {}

}  // namespace tessera::run
