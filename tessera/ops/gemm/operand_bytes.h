// The memory of an operand in a number format (operand.h).
#pragma once
#include <cstdint>

#include "tessera/quant/formats/encoding.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::ops {

// Returns the bytes that a GPU needs to keep an operand for a later product. An operand of a decoded product is kept as
// codes, by the columns of its matrix (Sides::kept). A number of the whole matrix is not counted.
std::int64_t stored_bytes(quant::Extent extent, const quant::Encoding& encoding);

}  // namespace tessera::ops
