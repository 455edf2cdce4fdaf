// Places of a mesh without a rank: dead places, and live places that a run retires. All functions except read_slots are
// pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/settings/mesh_settings.h"

namespace tessera::settings {

// Parses "dp0.gtp1:0,3;dp2:1": slots 0 and 3 of the tp group of replica 0 and gtp rank 1, and slot 1 of replica 2 and
// gtp rank 0. `flag` names the text in errors. Throws InputError for: a text of another form; a coordinate cp or pp
// other than 0; a place that is named twice.
PlaceMap parse_slots(std::string_view text, std::string_view flag);
// Like parse_slots. If `text` ends in ".json", it is the path of a file with an object like {"dp0.gtp1": [0, 3], "dp2":
// [1]}.
PlaceMap read_slots(const std::string& text, std::string_view flag);
// Returns the text from which parse_slots gives `slots`.
std::string to_text(const PlaceMap& slots);
// Returns the text of a place in error messages, such as "dp0.gtp1:3".
std::string to_text(const TpGroup& group, int slot);

struct Spares {
  int count = 0;      // largest number of dead slots in a tp group
  PlaceMap inactive;  // by group with a dead slot: its slots without a rank

  bool operator==(const Spares&) const = default;
};
// Chooses the slots without a rank, so that all tp groups with a dead slot have the same number of active slots.
// `count` is the largest number of dead slots in a group. In each group with a dead slot, `count` slots have no rank:
// the dead slots, then the highest live slots.
Spares uniform_spares(const PlaceMap& dead, int tp);

// Returns the slots without a rank under --dead, --idle and --tp-spares. Throws
// InputError for: a place outside the mesh; a place that --dead and --idle both name; --tp-spares without a dead place;
// fewer spares than a group has dead slots; a mesh without an active place. The message names the flag and the place.
PlaceMap inactive_slots(const MeshSettings& mesh);
// Returns the tp slots of a group that have a rank.
std::vector<int> active_slots(const PlaceMap& inactive, const TpGroup& group, int tp);
// Returns the numbers of the places in `slots` in the grid (tp, gtp, dp), in ascending order. The number of a place is
// slot + tp * (gtp rank + gtp * replica).
std::vector<int> places_of(const PlaceMap& slots, std::int64_t tp, std::int64_t gtp);
std::int64_t count(const PlaceMap& slots);

// Whether a started process has a rank, and its rank.
struct StartedRank {
  int rank = 0, size = 1;  // rank, and number of ranks
  std::string text = {};   // for a process without a rank: the line that it prints, with its place; otherwise empty

  bool takes_part() const { return text.empty(); }
};
// Returns the number of replicas if each of `processes` processes was started for a place and --dp is not given.
// Returns 0 if a replica of tp * gtp places does not divide `processes`, or if --dead or --idle names a later replica.
std::int64_t replicas_of_processes(const MeshSettings& mesh, int processes);
// Returns the rank of process `rank` of `processes`. A launcher may start one process for each active place, or one for
// each place. In the second case, the processes of places without a rank have no rank. In all other cases, returns
// `rank` and `processes` unchanged; resolve_mesh refuses a wrong number of processes. `mesh` has the settings of the
// command line or of the resumed run; dp may be 0. Throws the errors of inactive_slots.
StartedRank started_rank(MeshSettings mesh, int rank, int processes);

}  // namespace tessera::settings
