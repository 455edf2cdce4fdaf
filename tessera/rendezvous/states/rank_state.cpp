#include "tessera/rendezvous/states/rank_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/rendezvous/host.h"
#include "tessera/rendezvous/rank_text.h"

namespace tessera::rendezvous {
namespace {

using StateClock = std::chrono::steady_clock;

struct NotedState {
  RankState state;
  StateClock::time_point begin = StateClock::now();  // of the phase
};

struct NotedStates {
  std::mutex mutex;
  std::map<int, NotedState> of;
};

NotedStates& noted_states() {
  static NotedStates states;
  return states;
}

std::atomic<std::int64_t> requested_tables = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

}  // namespace

std::string to_line(const RankState& state) {
  const nlohmann::json json{{"rank", state.rank},
                            {"host", state.host},
                            {"process", state.process},
                            {"step", state.step},
                            {"phase", state.phase},
                            {"seconds", state.seconds},
                            {"operation", state.operation},
                            {"waits", state.waits},
                            {"waits_for", state.waits_for},
                            {"timed_out", state.timed_out},
                            {"table_requests", state.table_requests}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<RankState> parse_state(std::string_view line) {
  try {
    const nlohmann::json json = base::parse_json(line, "state of a rank");
    return RankState{.rank = json.at("rank"),
                     .host = json.at("host"),
                     .process = json.at("process"),
                     .step = json.at("step"),
                     .phase = json.at("phase"),
                     .seconds = json.at("seconds"),
                     .operation = json.at("operation"),
                     .waits = json.at("waits"),
                     .waits_for = json.at("waits_for").get<std::vector<int>>(),
                     .timed_out = json.at("timed_out"),
                     .table_requests = json.at("table_requests")};
  } catch (const InputError&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string state_text(const RankState& state) {
  std::string text = fmt::format("step {}, {} for {:.0f} s", state.step, state.phase, state.seconds);
  if (!state.operation.empty()) text += ", last " + state.operation;
  if (!state.waits) return text;
  const std::vector<int>& ranks = state.waits_for;
  return text + (ranks.empty() ? std::string(", waits for other ranks")
                               : fmt::format(", waits for rank{} {}", ranks.size() == 1 ? "" : "s", rank_list(ranks)));
}

void note_phase(int rank, std::int64_t step, std::string_view phase) {
  const std::lock_guard lock(noted_states().mutex);
  NotedState& noted = noted_states().of[rank];
  noted.state.step = step;
  noted.state.phase = phase;
  noted.begin = StateClock::now();
}

void note_operation(int rank, std::string operation, bool waits, std::vector<int> waits_for) {
  const std::lock_guard lock(noted_states().mutex);
  RankState& state = noted_states().of[rank].state;
  state.operation = std::move(operation);
  state.waits = waits;
  state.waits_for = std::move(waits_for);
}

void note_time_limit(int rank) {
  const std::lock_guard lock(noted_states().mutex);
  noted_states().of[rank].state.timed_out = true;
}

std::vector<RankState> own_states() {
  const std::string host = host_name();
  const std::lock_guard lock(noted_states().mutex);
  std::vector<RankState> states;
  for (const auto& [rank, noted] : noted_states().of) {
    RankState& state = states.emplace_back(noted.state);
    state.rank = rank;
    state.host = host;
    state.process = getpid();
    state.seconds = std::chrono::duration<double>(StateClock::now() - noted.begin).count();
    state.table_requests = requested_tables;
  }
  return states;
}

void accept_table_requests() {
  std::signal(SIGUSR2, [](int) { ++requested_tables; });
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

std::int64_t table_requests() {
  return requested_tables;
}

}  // namespace tessera::rendezvous
