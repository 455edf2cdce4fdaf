#include "tessera/layout/merge.h"

#include <algorithm>
#include <optional>

namespace tessera::layout {
namespace {

std::optional<Piece> join_beside(const Piece& a, const Piece& b) {
  const bool logical = a.box.row == b.box.row && a.box.rows == b.box.rows && b.box.col == a.box.col + a.box.cols;
  const bool local = b.offset == a.offset + a.box.cols && (a.box.rows == 1 || a.stride == b.stride);
  if (!logical || !local) return std::nullopt;
  Piece joined = a;
  joined.box.cols += b.box.cols;
  joined.stride = std::max(a.stride, joined.box.cols);  // a piece of one row may have any stride
  return joined;
}

std::optional<Piece> join_below(const Piece& a, const Piece& b) {
  const bool logical = a.box.col == b.box.col && a.box.cols == b.box.cols && b.box.row == a.box.row + a.box.rows;
  if (!logical) return std::nullopt;
  // The stride of a piece of one row does not determine the offset of the next row.
  const std::int64_t gap = b.offset - a.offset;
  const std::int64_t stride = a.box.rows > 1 ? a.stride : b.box.rows > 1 ? b.stride : gap;
  const bool same_stride = a.box.rows == 1 || b.box.rows == 1 || a.stride == b.stride;
  if (!same_stride || gap != a.box.rows * stride) return std::nullopt;
  Piece joined = a;
  joined.box.rows += b.box.rows;
  joined.stride = stride;
  return joined;
}

template <typename Join>
void join_neighbours(std::vector<Piece>& pieces, Join join) {
  if (pieces.empty()) return;
  std::size_t last = 0;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    if (const auto joined = join(pieces[last], pieces[i])) {
      pieces[last] = *joined;
    } else {
      pieces[++last] = pieces[i];
    }
  }
  pieces.resize(last + 1);
}

}  // namespace

std::vector<Piece> merge_adjacent(const std::vector<Piece>& pieces) {
  std::vector<Piece> merged = pieces;
  join_neighbours(merged, join_beside);
  join_neighbours(merged, join_below);
  return merged;
}

}  // namespace tessera::layout
