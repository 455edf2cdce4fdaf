// Finds the ranks that hang, from the states of all ranks.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tessera/rendezvous/states/rank_state.h"

namespace tessera::rendezvous {

struct RankReport {
  std::optional<RankState> state = {};  // the last known state; absent: the rank has never sent one
  bool answers = false;                 // whether the rank still sends its state
};

// Returns the ranks for which others wait and which wait for no rank, in ascending order. `reports` is in the order of
// ranks. The search begins with the ranks that waited until the time limit, or with all waiting ranks if no rank did,
// and follows the ranks for which each one waits. A rank that does not answer waits for no rank: its last state may be
// old. If the search finds ranks that do not answer, only these are returned. If a rank does not say for which ranks it
// waits, it waits for all ranks that do not wait. Returns an empty list if no rank waits, or if all ranks that the
// search finds wait for each other.
std::vector<int> hung_ranks(const std::vector<RankReport>& reports);

// Returns the line "tessera: rank 2 hangs: ...", with a newline. `hung` is the result of hung_ranks. `limit_ms` is the
// time limit.
std::string hung_text(const std::vector<RankReport>& reports, const std::vector<int>& hung, std::int64_t limit_ms);

// Returns a line for each rank, with newlines.
std::string table_text(const std::vector<RankReport>& reports);

}  // namespace tessera::rendezvous
