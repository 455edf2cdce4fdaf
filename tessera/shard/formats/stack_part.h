// The part of a stack of matrices that a rank computes with.
#pragma once
#include <cstdint>

#include "tessera/layout/layout.h"
#include "tessera/quant/formats/quantize.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

struct StackPart {
  std::int64_t matrices = 0;        // of which the rank has some rows
  std::int64_t rows = 0, cols = 0;  // rows of all these matrices; columns of each row
};
// `height` is the number of rows of a logical matrix. The pieces of the part are in ascending order, and have the same
// columns.
StackPart stack_part(const layout::LocalLayout& part, std::int64_t height);

// Returns the matrices of a compute part, whose memory holds them one after the other. A parameter without a stack has
// one matrix. A stack must be one with matrix_of_stack.
Matrices matrices_of_part(const ParameterSpec& spec, const layout::LocalLayout& part);

// Returns the extent of the parts of one matrix, if it is the same for all matrices and ranks; otherwise 0 x 0.
quant::Extent matrix_of_stack(const ParameterSpec& spec);

}  // namespace tessera::shard
