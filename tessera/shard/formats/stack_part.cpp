#include "tessera/shard/formats/stack_part.h"

#include <algorithm>

namespace tessera::shard {

StackPart stack_part(const layout::LocalLayout& part, std::int64_t height) {
  StackPart result;
  std::int64_t next = 0;  // the first matrix that is not counted
  for (const layout::Piece& piece : part.pieces) {
    const std::int64_t end = (piece.box.row + piece.box.rows - 1) / height + 1;
    result.matrices += end - std::max(next, piece.box.row / height);
    next = end;
    result.rows += piece.box.rows;
    result.cols = piece.box.cols;
  }
  return result;
}

Matrices matrices_of_part(const ParameterSpec& spec, const layout::LocalLayout& part) {
  if (spec.dims.size() != 3) return {.matrix = extent_of(part)};
  const quant::Extent matrix = matrix_of_stack(spec);
  return {.matrix = matrix, .count = matrix.elements() == 0 ? 0 : part.size / matrix.elements()};
}

quant::Extent matrix_of_stack(const ParameterSpec& spec) {
  quant::Extent same;
  for (const layout::LocalLayout& rank : spec.compute.ranks) {
    if (rank.pieces.empty()) continue;
    const StackPart part = stack_part(rank, spec.dims[1]);
    if (part.rows % part.matrices != 0) return {};
    const quant::Extent own{.rows = part.rows / part.matrices, .cols = part.cols};
    if (same != quant::Extent{} && same != own) return {};
    same = own;
  }
  return same;
}

}  // namespace tessera::shard
