// What an operand of a product in a number format takes (operand.h).
#pragma once
#include <cstdint>

#include "tessera/quant/formats/encoding.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::ops {

// Bytes as a GPU stores it. A scale for the whole matrix does not count.
std::int64_t stored_bytes(quant::Extent extent, const quant::Encoding& encoding);

}  // namespace tessera::ops
