// A stored weight consists of planes, which are arrays: one for bf16; data and scales for a format with scales.
// Gathers, pushes and publishes move planes. A product reads a view of them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/layout/tiles.h"
#include "tessera/quant/dtype.h"

namespace tessera::shard {

inline constexpr std::size_t kMostPlanes = 4;  // of a parameter

// Returns the bytes of `elements` elements. Layers above ask here, and never for the size of a type.
inline std::int64_t bytes_of(std::int64_t elements, quant::DType type) {
  return elements * static_cast<std::int64_t>(quant::size_of(type));
}

struct PlaneSpec {
  std::string name = "weight";
  quant::DType type = quant::DType::fp32;
  layout::Tile tile;  // the part of the weight that one element of the plane stands for

  bool operator==(const PlaneSpec&) const = default;
  std::int64_t bytes(std::int64_t elements) const { return bytes_of(elements, type); }
};

// How a parameter, or one of its planes, lies over ranks; parameter.h explains the kinds.
struct ParameterLayouts {
  layout::Layout compute, home;  // over the compute ranks
  bool is_cut = true;            // false: every rank stores the whole
  std::int64_t together = 1;     // storage is cut after a multiple of so many rows

  // Whether several compute ranks use an element, which one of them stores.
  bool overlaps() const { return home != compute; }
  // The storage layout of one compute rank's part, over `parts` ranks.
  layout::Layout stored(int compute_rank, int parts) const;
  // What each of `replicas` ranks that store the same updates of it (ZeRO-1).
  std::vector<layout::LocalLayout> updated(const layout::LocalLayout& local, int replicas) const;
};

// One rank's parts of a parameter or of a plane.
struct RankParts {
  ParameterLayouts layouts;
  layout::Layout storage;  // over the ranks that store this rank's compute part
  // The same of each replica, where places of the mesh are dead; else empty.
  std::vector<layout::Layout> storage_by_replica;
  layout::LocalLayout local_compute, local_home, local_storage, local_state;
  std::vector<layout::LocalLayout>
      states;                     // each replica's part of what is stored here; empty where the state is not split
  std::int64_t state_offset = 0;  // elements of the stored part before this rank's local_state
};

// A plane as one rank stores it.
struct Plane : RankParts {
  PlaneSpec spec;
  base::Buffer data;  // local_storage.size elements: what travels

  std::int64_t bytes(std::int64_t elements) const { return spec.bytes(elements); }
  // This rank's state part, dense.
  std::byte* state_data() { return data.data() + bytes(state_offset); }
};

}  // namespace tessera::shard
