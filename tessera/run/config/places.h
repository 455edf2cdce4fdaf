// Places of a mesh that do no work: dead ones, and live ones that a run retires. Pure functions, but for read_slots.
//
// A place is (dp, gtp, tp slot). The tp slots of one (dp, gtp) are a tp group.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/run/config/config.h"

namespace tessera::run {

struct TpGroup {
  int dp = 0, gtp = 0;

  auto operator<=>(const TpGroup&) const = default;
};
// Lists tp slots by group. The slots of a group ascend.
using PlaceMap = std::map<TpGroup, std::vector<int>>;

// Parses "dp0.gtp1:0,3;dp2:1": slots 0 and 3 of the tp group of replica 0 and gtp rank 1, and slot 1 of replica 2 and
// gtp rank 0. `flag` names the text in errors. Throws InputError for a text of another form, for a coordinate cp or pp
// other than 0, and for a place that is named twice.
PlaceMap parse_slots(std::string_view text, std::string_view flag);
// As parse_slots. A text that ends in ".json" is the path of a file with an object {"dp0.gtp1": [0, 3], "dp2": [1]}.
PlaceMap read_slots(const std::string& text, std::string_view flag);
// Returns the text from which parse_slots gives `slots`.
std::string to_text(const PlaceMap& slots);
// Returns a place as errors name it: "dp0.gtp1:3".
std::string to_text(const TpGroup& group, int slot);

struct Spares {
  int count = 0;      // dead slots of the tp group that has most of them
  PlaceMap inactive;  // of each group with a dead slot: the slots that do not take part

  bool operator==(const Spares&) const = default;
};
// Returns the slots that leave every tp group with a dead slot `count` slots below `tp`: the dead slots and, from the
// highest slot down, live ones. `count` is the greatest number of dead slots of a group.
Spares uniform_spares(const PlaceMap& dead, int tp);

// Returns the slots without work under --dead, --idle and --tp-spares. `config`: with tp, gtp and dp. Throws
// InputError, which names the flag and the place, for a place outside the mesh, a place that --dead and --idle both
// name, spares without a dead place, fewer spares than a group has dead slots, and a mesh without an active place.
PlaceMap inactive_slots(const TrainConfig& config);
// Returns the tp slots of a group that take part.
std::vector<int> active_slots(const PlaceMap& inactive, const TpGroup& group, int tp);
// Returns the places of `slots` in the grid (tp, gtp, dp), ascending: slot + tp * (gtp rank + gtp * replica).
std::vector<int> places_of(const PlaceMap& slots, const TrainConfig& config);
std::int64_t count(const PlaceMap& slots);

// The role of a started process.
struct StartedRank {
  int rank = 0, size = 1;  // among the processes that take part
  std::string text = {};   // if it takes no part: the line that it prints, with its place

  bool takes_part() const { return text.empty(); }
};
// `rank` of `processes` that a launcher started: one for each active place, or one for each place. Returns `rank` and
// `processes` themselves if all take part, and for another number of processes, which resolve_ranks refuses. `config`:
// the settings of the command line or of the resumed run; dp may be 0. Throws the errors of inactive_slots.
StartedRank started_rank(TrainConfig config, int rank, int processes);

}  // namespace tessera::run
