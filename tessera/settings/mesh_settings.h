// Settings of the mesh of a run.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::settings {

// A place is (dp, gtp, tp slot). The tp slots of one (dp, gtp) are a tp group.
struct TpGroup {
  int dp = 0, gtp = 0;

  auto operator<=>(const TpGroup&) const = default;
};
// Tp slots by tp group. The slots of a group are in ascending order.
using PlaceMap = std::map<TpGroup, std::vector<int>>;

// Places without a rank (places.h).
struct UnusedPlaces {
  PlaceMap dead, idle;    // idle: live places that the run retires
  std::string tp_spares;  // number of slots that tp groups with dead slots leave unused: "auto" or a number; or empty
  // Sequences of a step for each replica with unused places: "auto" or a number; empty: equal shares.
  std::string reduced_batch;
};

struct MeshSettings {
  std::int64_t ranks = 0;  // 0: tp * gtp * dp, or the number of ranks that the launcher started
  std::int64_t tp = 1, gtp = 1;
  std::int64_t dp = 0;                     // 0: ranks / (tp * gtp)
  std::int64_t etp = 1, ep = 1, egtp = 1;  // degrees of the expert grid (nn::ExpertDegrees)
  UnusedPlaces unused = {};

  std::int64_t replica_places() const { return tp * gtp; }
  std::int64_t places() const { return tp * gtp * dp; }
  // Returns whether --dead, --idle or --tp-spares leaves places without a rank.
  bool has_unused_places() const { return !unused.dead.empty() || !unused.idle.empty() || !unused.tp_spares.empty(); }
};

}  // namespace tessera::settings
