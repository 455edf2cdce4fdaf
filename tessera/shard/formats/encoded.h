// The planes of weights that are stored and sent in a number format (quant/formats/encoding.h).
//
// One plane contains the data, another plane contains the scales of the tiles. A number for the whole matrix (the scale
// of an fp8 matrix, the amax of an nvfp4 matrix) is not a plane. The cast writes this number on every rank, so the
// number is never sent.
#pragma once
#include <vector>

#include "tessera/quant/formats/quantize.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

std::vector<PlaneSpec> encoded_planes(const quant::Encoding& encoding);
// Returns whether the encoding has a number for the whole matrix. This number depends on all elements.
bool has_tensor_scale(const quant::Encoding& encoding);
// Returns whether the whole matrix is one tile. Ranks may then hold any of its elements.
bool has_one_tile(const quant::Encoding& encoding);
// Throws InputError for an encoding with tiles if some tp group of the mesh lacks ranks. Called for the encodings of
// weights and of products.
void check_tiles(const ParameterSpec& spec, const quant::Encoding& encoding);
// Throws the errors of check_tiles. Throws InputError for a parameter that the encoding cannot store: a parameter that
// is not sharded; a type other than bf16; overlapping parts of compute ranks that begin or end inside a tile; rows of a
// rank with an odd number of 4-bit elements.
void check_encoding(const ParameterSpec& spec, const ParameterTypes& types);

// Returns the extent of a rank's part in one layout. The part must be a dense matrix. The extent is 0 x 0 if the rank
// has no elements.
quant::Extent extent_of(const layout::LocalLayout& local);

// The matrices of a rank's compute part, which the memory holds one after the other. A parameter without a stack has
// one matrix.
struct Matrices {
  quant::Extent matrix;
  std::int64_t count = 1;
};
Matrices compute_matrices(const ShardedParameter& parameter);

// Returns the quantized matrix of a parameter, whose data and scales are at these addresses. For a stack, these are the
// addresses of the first matrix. Those of matrix i come after the data and the scales of i matrices; its number for the
// whole matrix is the i-th of ShardedParameter::tensor_scale.
quant::Quantized encoded_matrix(ShardedParameter& parameter, std::byte* data, std::byte* scales);

}  // namespace tessera::shard
