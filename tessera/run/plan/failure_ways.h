// Compares the ways to continue a run whose mesh has lost places, for `tessera plan --dead`.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/run/config/shares.h"
#include "tessera/run/plan/replica_plans.h"

namespace tessera::run {

enum class Way {
  drop_replica,       // replicas with an unused place take no part
  drop_gtp_place,     // tp groups with an unused place take no part; their gtp groups shrink
  adopt,              // the other ranks of a tp group adopt its missing parts; replicas have equal shares
  adopt_with_shares,  // the same, and reduced replicas compute fewer sequences (--reduced-batch)
};
inline constexpr std::array<Way, 4> kWays{Way::drop_replica, Way::drop_gtp_place, Way::adopt, Way::adopt_with_shares};
std::string_view name_of(Way way);  // "drop the replica"

// The replicas of one kind in a step.
struct KindStep {
  ReplicaKind kind;
  std::int64_t sequences = 0, microbatches = 0;  // of the replica with the most
  ReplicaStep step;
};
struct MeshStep {
  ReplicaKinds kinds;
  std::vector<KindStep> by_kind;  // in the order of kinds.kinds
  double seconds = 0;             // of the slowest kind: replicas wait for each other at the end of a step

  const KindStep& slowest() const;
};
// Returns the step of a mesh with unused places. `config`: resolved.
MeshStep mesh_step(const TrainConfig& config, const TpUnits& units, ReplicaPlans& plans);

struct WayResult {
  Way way = Way::adopt;
  std::string refusal;     // not empty: the way is not possible, and the members below have no values
  std::int64_t ranks = 0;  // that take part
  // Sequences of each reduced replica (--reduced-batch); nullopt: equal shares.
  std::optional<std::int64_t> reduced_batch;
  PlaceMap idle;                  // live places that the way leaves out, besides `unused`
  double seconds = 0;             // of a step
  std::string slowest;            // kind_text of the replicas that take longest
  std::int64_t microbatches = 0;  // of these replicas
  double kept = 0;                // throughput, divided by that of the mesh with all places and the same global batch
  // As `kept`, if the sequences of a step could be divided at will among the replicas whose shares the way chooses,
  // into microbatches of any size.
  double kept_if_divisible = 0;
  MemoryUse memory;  // of the rank that needs most
  bool fits = true;
};

struct WayComparison {
  double full_seconds = 0;                          // of a step of the mesh with all places
  std::int64_t unused = 0;                          // places
  std::int64_t reduced_replicas = 0, replicas = 0;  // replicas with an unused place; all replicas of the mesh
  std::vector<WayResult> ways;                      // in the order of kWays
  std::optional<std::size_t> best;                  // index of the recommended way; nullopt: no way is possible
  std::string reason;                               // one sentence
};
// `config`: resolved; its unused places are given by `unused`. Settings of unused places and shares in `config` do not
// count. Without an unused place every way keeps all of the throughput.
WayComparison compare_ways(const TrainConfig& config, const PlaceMap& unused, const TpUnits& units,
                           ReplicaPlans& plans);

}  // namespace tessera::run
