// The planes of a parameter, and the layouts of a parameter and of its planes. Pure.
#pragma once
#include <vector>

#include "tessera/shard/parameter.h"
#include "tessera/shard/plane.h"

namespace tessera::shard {

// Returns the planes of a parameter: its own, those of its encoding, or else one of the model's type.
std::vector<PlaneSpec> planes_of(const ParameterSpec& spec, const ParameterTypes& types);

// Errors: a layout of another shape than dims, or one that leaves an element out; too many planes, a tile below 1 x 1,
// a first plane by tile. Errors of an encoding: check_encoding (encoded.h).
ParameterLayouts layouts_of(const ParameterSpec& spec);

// Returns the layouts of a plane. A compute rank's part has the grid of tiles; storage and state are cut between tiles.
// Errors: a plane by tile where compute ranks' parts overlap and begin or end inside a tile.
ParameterLayouts plane_layouts(const ParameterSpec& spec, const PlaneSpec& plane, const ParameterLayouts& layouts);

// Returns the parts of one rank. `layouts`: of the parameter or of one of its planes. `cuts` and `place`: of the
// parameter's domain.
RankParts rank_parts(ParameterLayouts layouts, const Cuts& cuts, const Place& place);

}  // namespace tessera::shard
