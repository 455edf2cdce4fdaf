// Computes the planes of a parameter, and the layouts of a parameter and of its planes. Pure.
#pragma once
#include <vector>

#include "tessera/shard/parameter.h"
#include "tessera/shard/plane.h"

namespace tessera::shard {

// Returns the planes of a parameter: its own planes, those of its encoding, or else one plane of the model's type.
std::vector<PlaneSpec> planes_of(const ParameterSpec& spec, const ParameterTypes& types);

// Returns the layouts of a parameter. Throws Error if the compute layout has another shape than `dims` or lacks an
// element. Throws Error for more than kMaxPlanes planes, for a tile below 1 x 1, or if an element of the first plane
// is a larger tile. For encodings, see check_encoding (encoded.h). If a compute group of the mesh lacks ranks, throws
// Error if spec.compute_by_slots lacks a shape, and InputError for planes of tiles, for products in a format of tiles
// and for sums by nodes.
ParameterLayouts layouts_of(const ParameterSpec& spec, const Cuts& cuts = {});

// Returns the layouts of a plane. The compute layout counts the tiles of each rank's part. Storage and state are cut
// between tiles. Throws Error if the parts of compute ranks overlap and begin or end inside a tile.
ParameterLayouts plane_layouts(const ParameterSpec& spec, const PlaneSpec& plane, const ParameterLayouts& layouts);

// Returns the parts of one rank. `layouts` belongs to the parameter or to one of its planes. `cuts` and `place` belong
// to the parameter's domain.
RankParts rank_parts(ParameterLayouts layouts, const Cuts& cuts, const Place& place);

// Returns the parts that the ranks of RankParts::storage use: their home parts, over the same ranks.
layout::Layout homes_of(const RankParts& parts, const Place& place);

// The parts that the ranks of one replica store, duplicates left out.
class StoredParts {
 public:
  // The replica is that of `cuts`.
  StoredParts(const ParameterLayouts& layouts, const Cuts& cuts);

  const std::vector<Place>& places() const { return places_; }  // of all ranks; only compute and part are set
  // Returns the layout over the ranks that together store the part of the rank at `place`, and its number among them.
  const layout::Layout& around(const Place& place) const;
  int number_of(const Place& place) const;
  const layout::LocalLayout& of(const Place& place) const {
    return around(place).ranks[static_cast<std::size_t>(number_of(place))];
  }

 private:
  bool over_replica_ = false;            // all ranks of the replica store together
  std::vector<layout::Layout> layouts_;  // by compute rank, or one for the replica
  std::vector<int> first_;               // by part: number of its first rank in the replica
  std::vector<Place> places_;
};

}  // namespace tessera::shard
