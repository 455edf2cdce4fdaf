// Divides the work of a MasterCast on a GPU into pieces. One thread block processes one piece. The plan is made once,
// on the host.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/quant/cuda/tiling.h"
#include "tessera/quant/masters/master_cast.h"

namespace tessera::quant {

// The number of tiles whose scales one block computes.
inline constexpr std::int64_t kScalePiece = 256;

// A slice with its position in the plan, as the kernels read it.
struct MasterItem {
  MasterSlice slice;
  Tiling tiling;
  std::int64_t first_tile = 0;   // index of its first tile among the tiles of all slices
  std::int64_t first_piece = 0;  // index of its first piece among the pieces of all slices
  std::int64_t first_row = 0;    // matrix row where the item's first piece begins
  std::int64_t pieces_across = 1;
  // The tiles whose multiplier or scale this rank needs; scale pieces from first_scale_piece on compute them.
  Slice made_tiles;
  std::int64_t first_scale_piece = 0;
  bool is_one_tile = false;   // whether the weight is one tile, whose amax is the amax of the whole weight
  bool whole_loads = false;   // whether every vector of the source is aligned for one load
  bool whole_stores = false;  // whether every vector of the codes is aligned for one store
};

struct MasterCastPlan {
  std::vector<MasterItem> items;
  std::vector<std::int32_t> item_of_piece, item_of_scale_piece;
  std::int64_t tiles = 0;
  std::int64_t numbers = 0;  // number of amaxes of whole weights
};

// Slices whose numbers are known, and the number of amaxes of whole weights.
struct NumberedSlices {
  std::vector<MasterSlice> slices;
  std::int64_t numbers = 0;
};
// Replaces each -1 by its meaning in make_host_master_cast, and throws the errors of make_host_master_cast.
NumberedSlices numbered_slices(std::span<const MasterSlice> slices, std::int64_t numbers);
MasterCastPlan plan_master_cast(std::span<const MasterSlice> slices, std::int64_t numbers = -1);

}  // namespace tessera::quant
