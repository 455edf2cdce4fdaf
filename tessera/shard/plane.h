// The planes of a stored weight. A plane is an array: a bf16 weight has one plane, and a format with scales has one
// plane for data and one for scales. Gathers, pushes and publishes move planes. A product reads a view of the planes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/layout/tiles.h"
#include "tessera/quant/dtype.h"

namespace tessera::shard {

inline constexpr std::size_t kMaxPlanes = 4;  // of one parameter

// Returns the bytes of `elements` elements. Layers above call this function instead of quant::size_of.
inline std::int64_t bytes_of(std::int64_t elements, quant::DType type) {
  return elements * static_cast<std::int64_t>(quant::size_of(type));
}

struct PlaneSpec {
  std::string name = "weight";
  quant::DType type = quant::DType::fp32;
  layout::Tile tile;  // the rows and columns of the weight that share one element of the plane

  bool operator==(const PlaneSpec&) const = default;
  std::int64_t bytes(std::int64_t elements) const { return bytes_of(elements, type); }
};

// The layouts of a parameter, or of one of its planes, over the ranks. parameter.h explains the kinds.
struct ParameterLayouts {
  layout::Layout compute, home;  // over the compute ranks
  bool is_cut = true;            // false: every rank stores the whole
  std::int64_t together = 1;     // storage is cut after a multiple of this number of rows

  // Whether several compute ranks use an element that only one of them stores.
  bool overlaps() const { return home != compute; }
  // Returns the storage layout of one compute rank's part, over `parts` ranks.
  layout::Layout stored(int compute_rank, int parts) const;
  // Returns, for `replicas` ranks that all store `local`, the part that each of them updates (ZeRO-1).
  std::vector<layout::LocalLayout> updated(const layout::LocalLayout& local, int replicas) const;
};

// One rank's parts of a parameter or of a plane.
struct RankParts {
  ParameterLayouts layouts;
  layout::Layout storage;  // over the ranks that store this rank's compute part
  // The storage layout in each replica. Set if the mesh has dead places, else empty.
  std::vector<layout::Layout> storage_by_replica;
  layout::LocalLayout local_compute, local_home, local_storage, local_state;
  std::vector<layout::LocalLayout> states;  // each replica's part of local_storage; empty if the state is not split
  std::int64_t state_offset = 0;            // elements of local_storage before this rank's local_state
};

// A plane, as one rank stores it.
struct Plane : RankParts {
  PlaneSpec spec;
  base::Buffer data;  // local_storage.size elements; gathers and publishes send this array

  std::int64_t bytes(std::int64_t elements) const { return spec.bytes(elements); }
  // This rank's state part, dense.
  std::byte* state_data() { return data.data() + bytes(state_offset); }
};

}  // namespace tessera::shard
