// Weights that are stored and sent in a number format (quant/formats/encoding.h): their planes.
//
// One plane has the data, one the scales by tile. A number of the whole matrix (the scale of an fp8 matrix, the amax of
// an nvfp4 one) is no plane: the cast leaves it on every rank, so it never travels.
#pragma once
#include <vector>

#include "tessera/quant/formats/quantize.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

std::vector<PlaneSpec> encoded_planes(const quant::Encoding& encoding);
// Whether there is a number of the whole matrix, which depends on all of its elements.
bool has_tensor_scale(const quant::Encoding& encoding);
// Errors (InputError): an encoding for a parameter that is not cut over ranks, or whose type is not bf16; tiles where
// parts of compute ranks overlap and begin or end inside one; 4-bit elements in rows of an odd number of columns on
// some rank.
void check_encoding(const ParameterSpec& spec, const ParameterTypes& types);

// The dense matrix that is a rank's part of a parameter: of its rows as one layout has them.
quant::Extent extent_of(const layout::LocalLayout& local);

// The encoded matrix where its data and scales lie at these places.
quant::Quantized encoded_matrix(ShardedParameter& parameter, std::byte* data, std::byte* scales);

}  // namespace tessera::shard
