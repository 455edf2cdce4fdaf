// The step, the phase and the waits of the ranks of this process, and the text that a rank sends to other ranks.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::rendezvous {

struct RankState {
  int rank = 0;
  std::string host = {};
  std::int64_t process = 0;
  std::int64_t step = 0;
  std::string phase = "start";      // "training", "evaluation", "save"
  double seconds = 0;               // time since the phase began
  std::string operation = {};       // the last collective that is known, e.g. "all_gather #12 on gtp[0,1], rank 0"
  bool waits = false;               // whether the rank waits for other ranks
  std::vector<int> waits_for = {};  // the ranks for which it waits; empty although `waits`: not known
  bool timed_out = false;           // whether it has waited until the time limit
  std::int64_t table_requests = 0;  // number of requests of its process for a table (SIGUSR2)
  bool operator==(const RankState&) const = default;
};

// Returns one line without a newline.
std::string to_line(const RankState& state);
// Returns nullopt if the line is not a state.
std::optional<RankState> parse_state(std::string_view line);
// Returns "step 17, training for 63 s, last all_gather #12 on gtp[0,1], rank 0, waits for ranks 1,2".
std::string state_text(const RankState& state);

// The states of the ranks of this process. A process has one rank, or with threads several. Any thread may call the
// functions.
void note_phase(int rank, std::int64_t step, std::string_view phase);
void note_operation(int rank, std::string operation, bool waits, std::vector<int> waits_for = {});
void note_time_limit(int rank);
std::vector<RankState> own_states();  // in the order of ranks

// Lets SIGUSR2 count a request for a table instead of ending the process.
void accept_table_requests();
std::int64_t table_requests();

}  // namespace tessera::rendezvous
