// Divides the work of a MasterCast on a GPU into pieces for the blocks of its kernels. The plan is made once, on the
// host.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/quant/cuda/tiling.h"
#include "tessera/quant/masters/master_cast.h"

namespace tessera::quant {

// The number of tiles whose scales one block computes.
inline constexpr std::int64_t kScalePiece = 256;

// A slice in the form that the kernels read.
struct MasterItem {
  MasterSlice slice;
  Tiling tiling;
  std::int64_t first_tile = 0;   // among the tiles of all slices
  std::int64_t first_piece = 0;  // among the pieces of all slices
  std::int64_t first_row = 0;    // first row of the item's first piece
  std::int64_t pieces_across = 1;
  // The tiles that need a multiplier or a scale on this rank, and the first block that computes them.
  Slice made_tiles;
  std::int64_t first_scale_piece = 0;
  bool is_one_tile = false;   // whether the amax of this tile is the amax of the whole weight
  bool whole_loads = false;   // whether every vector of the source is aligned for one load
  bool whole_stores = false;  // whether every vector of the codes is aligned for one store
};

struct MasterCastPlan {
  std::vector<MasterItem> items;
  std::vector<std::int32_t> item_of_piece, item_of_scale_piece;
  std::int64_t tiles = 0;
};

// Throws as make_host_master_cast.
void check_slice(const MasterSlice& slice);
MasterCastPlan plan_master_cast(std::span<const MasterSlice> slices);

}  // namespace tessera::quant
