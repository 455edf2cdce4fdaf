// The planes of a stored weight. A plane is an array. A bf16 weight has one plane. A weight in a format with scales has
// one plane for data and one plane for scales. Gathers, pushes and publish events transfer planes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/layout/tiles.h"
#include "tessera/quant/dtype.h"

namespace tessera::shard {

inline constexpr std::size_t kMaxPlanes = 4;  // maximum number of planes of a parameter

// Returns the bytes of `elements` elements. Code above this layer calls this function instead of quant::size_of.
inline std::int64_t bytes_of(std::int64_t elements, quant::DType type) {
  return elements * static_cast<std::int64_t>(quant::size_of(type));
}

struct PlaneSpec {
  std::string name = "weight";
  quant::DType type = quant::DType::fp32;
  layout::Tile tile;  // numbers of rows and columns of the weight that share one element of the plane

  bool operator==(const PlaneSpec&) const = default;
  std::int64_t bytes(std::int64_t elements) const { return bytes_of(elements, type); }
};

// The layouts of one compute group.
struct GroupLayouts {
  layout::Layout compute, home;

  bool overlaps() const { return home != compute; }
};

// The layouts of a parameter or of a plane over the ranks. parameter.h explains the kinds of layouts.
struct ParameterLayouts {
  layout::Layout compute, home;  // layouts over the compute ranks
  bool is_cut = true;            // false: every rank stores the whole parameter
  // Storage and state are cut only between units of this number of rows (layout::RowUnits).
  std::int64_t together = 1;
  // By compute rank: the rows of each matrix of its home part, if the parameter is a stack of matrices. Empty: each
  // part is one matrix. A matrix of a stack is divided into tiles alone.
  std::vector<std::int64_t> matrix_rows = {};
  int slots = 1;  // number of places of the compute group, dead places included
  // By part: the layouts of all compute groups of this rank's replica. Set if the replica is reduced
  // (Cuts::is_reduced), else empty.
  std::vector<GroupLayouts> groups = {};
  // By replica: the storage layout over all its ranks, in the order of places. Set if some replica is reduced, else
  // empty.
  std::vector<layout::Layout> replicas = {};

  // Returns whether several compute ranks use an element that only one of them stores. The result is equal on all ranks
  // of a replica.
  bool overlaps() const;
  // Returns the layouts of compute group number `part`.
  GroupLayouts group(int part) const;
  // Returns the storage layout of one compute rank's part, over `parts` ranks.
  layout::Layout stored(int compute_rank, int parts) const;
  // Divides a shard over `replicas` ranks that all store `local`. Returns the part that each rank updates (ZeRO-1).
  std::vector<layout::LocalLayout> updated(const layout::LocalLayout& local, int replicas) const;
  // Returns the number of elements of part `replica` of updated(), without making the parts.
  std::int64_t updated_elements(const layout::LocalLayout& local, int replicas, int replica) const;
  // Returns replicas that include one with the largest and one with the smallest part of updated(), for any shard.
  std::vector<int> extreme_replicas(int replicas) const;

 private:
  // A shard's rows in the stack of the compute part that contains it, and the units of that stack. Without a stack, the
  // rows are counted from the shard's first row.
  struct RowsOfStack {
    layout::Range rows;
    layout::RowUnits units;
  };
  RowsOfStack rows_of(const layout::LocalLayout& local) const;
};

// One rank's parts of a parameter or of a plane.
struct RankParts {
  ParameterLayouts layouts;
  // The storage layout over the ranks of Transfer::gather. These ranks store this rank's compute part. In a reduced
  // replica with several parts, they are all ranks of the replica.
  layout::Layout storage;
  int storing_rank = 0;  // index of this rank in `storage`
  // By replica: the storage layout over the replica's ranks in Transfer::replicas. Set if the mesh has dead places,
  // else empty.
  std::vector<layout::Layout> storage_by_replica;
  int summing_rank = 0;  // index of this rank among the ranks of Transfer::replicas
  layout::LocalLayout local_compute, local_home, local_storage, local_state;
  std::int64_t matrix_rows = 0;  // rows of each matrix of local_compute, if the parameter is a stack; 0: one matrix
  // By rank of Transfer::replicas: the part that the rank updates. Empty if the state is not split. Without dead
  // places, the parts divide local_storage.
  std::vector<layout::LocalLayout> states;
  std::int64_t state_offset = 0;  // number of elements of local_storage before this rank's local_state

  // Returns the number of matrices of local_compute. A stack without elements has none.
  std::int64_t matrices() const;
};

// A plane on one rank.
struct Plane : RankParts {
  PlaneSpec spec;
  base::Buffer data;  // local_storage.size elements; gathers and publish events send this array

  std::int64_t bytes(std::int64_t elements) const { return spec.bytes(elements); }
  // Returns the address of this rank's state part, which is dense.
  std::byte* state_data() { return data.data() + bytes(state_offset); }
};

}  // namespace tessera::shard
