// The arrays that a stored weight consists of: one for bf16, data and scales for formats with scales. Gathers, pushes
// and publishes move planes; what a product reads is a view of planes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/layout/tiles.h"
#include "tessera/quant/dtype.h"

namespace tessera::shard {

inline constexpr std::size_t kMostPlanes = 4;  // of a parameter

// Of so many elements: a parameter's buffers and what travels are counted in bytes here alone.
inline std::int64_t bytes_of(std::int64_t elements, quant::DType type) {
  return elements * static_cast<std::int64_t>(quant::size_of(type));
}

struct PlaneSpec {
  std::string name = "weight";
  quant::DType type = quant::DType::fp32;
  layout::Tile tile;  // of the weight's rows and columns that one element of the plane stands for

  std::int64_t bytes(std::int64_t elements) const { return bytes_of(elements, type); }
};

// A plane's own layouts, of the kinds that parameter.h explains.
struct PlaneLayouts {
  layout::Layout compute, home, storage, state;
};

// A plane as one rank stores it.
struct Plane {
  PlaneSpec spec;
  PlaneLayouts layouts;
  layout::LocalLayout local_compute, local_home, local_storage, local_state;  // this rank's parts
  std::vector<std::int64_t> state_counts;                                     // elements of each replica's part; dense
  std::int64_t state_offset = 0;  // elements of the stored part before this rank's local_state
  base::Buffer data;              // local_storage.size elements: what travels

  std::int64_t bytes(std::int64_t elements) const { return spec.bytes(elements); }
  // This rank's state part, dense.
  std::byte* state_data() { return data.data() + bytes(state_offset); }
};

}  // namespace tessera::shard
