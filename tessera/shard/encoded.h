// The planes of weights that are stored and sent in a number format (quant/formats/encoding.h).
//
// One plane contains the data, another plane the scales by tile. A number of the whole matrix (the scale of an fp8
// matrix, the amax of an nvfp4 matrix) is not a plane. The cast writes this number on every rank, so the number never
// travels.
#pragma once
#include <vector>

#include "tessera/quant/formats/quantize.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

std::vector<PlaneSpec> encoded_planes(const quant::Encoding& encoding);
// Returns whether the encoding has a number for the whole matrix, which depends on all elements.
bool has_tensor_scale(const quant::Encoding& encoding);
// Throws InputError if the encoding cannot store the parameter: the parameter is not sharded or its type is not bf16;
// parts of compute ranks overlap and begin or end inside a tile; a rank has rows with an odd number of 4-bit elements.
void check_encoding(const ParameterSpec& spec, const ParameterTypes& types);

// Returns the extent of a rank's part in one layout, which is a dense matrix. The extent is 0 x 0 if the rank has no
// elements.
quant::Extent extent_of(const layout::LocalLayout& local);

// Returns the encoded matrix whose data and scales are at these addresses.
quant::Quantized encoded_matrix(ShardedParameter& parameter, std::byte* data, std::byte* scales);

}  // namespace tessera::shard
