// Compares the ways in which a run can continue after its mesh has lost places. For `tessera plan --dead`.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/replica_plans.h"

namespace tessera::plan {

enum class Continuation {
  drop_replica,    // replicas with an unused place are left out
  drop_gtp_place,  // tp groups with an unused place are left out, so their gtp groups become smaller
  adopt,  // the other ranks of a tp group adopt the missing parts; all replicas have equal shares of the global batch
  adopt_with_shares,  // as adopt, but reduced replicas have smaller shares of the global batch (--reduced-batch)
};
inline constexpr std::array<Continuation, 4> kContinuations{Continuation::drop_replica, Continuation::drop_gtp_place,
                                                            Continuation::adopt, Continuation::adopt_with_shares};
std::string_view name_of(Continuation continuation);  // for example "drop the replica"

// The step of the replicas of one kind.
struct KindStep {
  ReplicaKind kind;
  std::int64_t sequences = 0, microbatches = 0;  // sequences and microbatches of the replica with the most sequences
  ReplicaStep step;
};
struct MeshStep {
  ReplicaKinds kinds;
  std::vector<KindStep> by_kind;  // in the order of kinds.kinds
  double seconds = 0;  // duration of the slowest kind, because replicas wait for each other at the end of a step

  const KindStep& slowest() const;
};
// Returns the step of a mesh with unused places.
MeshStep mesh_step(const settings::ResolvedRun& run, ReplicaPlans& plans);

struct ContinuationResult {
  Continuation continuation = Continuation::adopt;
  // Reason why the continuation is not possible; the other members then have no values. Empty: it is possible.
  std::string refusal;
  std::int64_t ranks = 0;  // number of ranks that take part
  // Number of sequences of each reduced replica (--reduced-batch). nullopt: all replicas have equal shares.
  std::optional<std::int64_t> reduced_batch;
  settings::PlaceMap idle;        // live places that this continuation leaves out
  double seconds = 0;             // duration of a step
  std::string slowest;            // kind_text of the slowest replicas
  std::int64_t microbatches = 0;  // number of microbatches of the slowest replicas
  double kept = 0;  // throughput, divided by the throughput of the mesh with all places and the same global batch
  // The value of `kept` if microbatches could have any size. The sequences of a step are then divided without rounding
  // among the replicas whose shares this continuation chooses.
  double kept_if_divisible = 0;
  MemoryUse memory;  // memory of the rank that needs the most
  bool fits = true;
};

struct ContinuationComparison {
  double full_seconds = 0;  // duration of a step of the mesh with all places
  std::int64_t unused = 0;  // number of unused places
  // reduced_replicas: number of replicas with an unused place. replicas: number of all replicas of the mesh.
  std::int64_t reduced_replicas = 0, replicas = 0;
  std::vector<ContinuationResult> results;  // in the order of kContinuations
  std::optional<std::size_t> best;          // index of the recommended result; nullopt: none fits the memory
  std::string reason;                       // reason of the recommendation, one sentence
};
// `unused` contains the unused places. The unused places and the shares of the run are ignored. If no place is unused,
// every continuation keeps the full throughput.
ContinuationComparison compare_continuations(const settings::ResolvedRun& run, const settings::PlaceMap& unused,
                                             ReplicaPlans& plans);

}  // namespace tessera::plan
