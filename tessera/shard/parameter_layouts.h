// Computes the planes of a parameter, and the layouts of a parameter and of its planes. Pure.
#pragma once
#include <vector>

#include "tessera/shard/parameter.h"
#include "tessera/shard/plane.h"

namespace tessera::shard {

// Returns the planes of a parameter: spec.planes, the planes of its encoding, or otherwise one plane of the model's
// type.
std::vector<PlaneSpec> planes_of(const ParameterSpec& spec, const ParameterTypes& types);

// The rows of one matrix of a stack in a rank's part.
struct RowsOfMatrix {
  std::int64_t matrix = 0;  // index of the matrix among all matrices of the parameter (matrices_of)
  std::int64_t rows = 0;
};
// Returns the matrices of which a part has rows, in the order of the part.
std::vector<RowsOfMatrix> matrices_in(const ParameterSpec& spec, const layout::LocalLayout& part);

// Returns the layouts of a parameter. check_encoding (encoded.h) checks encodings. Throws Error for: a compute layout
// whose shape is not `dims`, or that lacks an element; more than kMaxPlanes planes; a tile smaller than 1 x 1; a tile
// of the first plane larger than 1 x 1; a part of a stack with different numbers of rows of its matrices; a stack with
// tiles whose compute parts overlap. If a compute group of the mesh lacks ranks, throws Error for a shape that
// spec.compute_by_slots lacks, and InputError for: planes with tiles; products in a format with tiles; the hierarchical
// order of reduction.
ParameterLayouts layouts_of(const ParameterSpec& spec, const Cuts& cuts = {});

// Returns the layouts of a plane, which count tiles. Storage and state are divided between tiles. Throws Error if the
// parts of compute ranks overlap and begin or end inside a tile.
ParameterLayouts plane_layouts(const ParameterSpec& spec, const PlaneSpec& plane, const ParameterLayouts& layouts);

// Returns one rank's parts of a parameter or of a plane, whose layouts are `layouts`. `cuts` and `place` belong to the
// parameter's domain.
RankParts rank_parts(ParameterLayouts layouts, const Cuts& cuts, const Place& place);

// Returns the home parts of the ranks of RankParts::storage, as a layout over these ranks.
layout::Layout homes_of(const RankParts& parts, const Place& place);

// The parts that the ranks of one replica store. Only one duplicate of each rank is included.
class StoredParts {
 public:
  // The replica is cuts.replica.
  StoredParts(const ParameterLayouts& layouts, const Cuts& cuts);

  // Returns the places of all ranks of the replica. Only `compute` and `part` are set.
  const std::vector<Place>& places() const { return places_; }
  // around() returns the storage layout over the ranks that together store the compute part of the rank at `place`.
  // number_of() returns the index of this rank in the layout. layouts() returns all of these layouts, and index_of()
  // the index of around() among them.
  const layout::Layout& around(const Place& place) const { return layouts_[index_of(place)]; }
  const std::vector<layout::Layout>& layouts() const { return layouts_; }
  std::size_t index_of(const Place& place) const { return over_replica_ ? 0 : static_cast<std::size_t>(place.compute); }
  int number_of(const Place& place) const;
  const layout::LocalLayout& of(const Place& place) const {
    return around(place).ranks[static_cast<std::size_t>(number_of(place))];
  }

 private:
  bool over_replica_ = false;            // true: all ranks of the replica share one storage layout
  std::vector<layout::Layout> layouts_;  // storage layouts by compute rank, or one for the whole replica
  std::vector<int> first_;               // by part: index of the part's first rank in the replica
  std::vector<Place> places_;
};

}  // namespace tessera::shard
