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
// is a larger tile. For encodings, see check_encoding (encoded.h).
ParameterLayouts layouts_of(const ParameterSpec& spec);

// Returns the layouts of a plane. The compute layout counts the tiles of each rank's part. Storage and state are cut
// between tiles. Throws Error if the parts of compute ranks overlap and begin or end inside a tile.
ParameterLayouts plane_layouts(const ParameterSpec& spec, const PlaneSpec& plane, const ParameterLayouts& layouts);

// Returns the parts of one rank. `layouts` belongs to the parameter or to one of its planes. `cuts` and `place` belong
// to the parameter's domain.
RankParts rank_parts(ParameterLayouts layouts, const Cuts& cuts, const Place& place);

}  // namespace tessera::shard
