// Makes layouts for tests of redistributions.
#pragma once
#include <algorithm>
#include <cstdint>
#include <random>
#include <set>

#include "tessera/layout/layout.h"

namespace tessera::comm {

// Calls visit(logical index, offset in the local buffer) for every element that the rank holds.
template <typename Visit>
void for_each_element(const layout::Layout& layout, int rank, Visit visit) {
  for (const layout::Piece& piece : layout.ranks[static_cast<std::size_t>(rank)].pieces)
    for (std::int64_t r = 0; r < piece.box.rows; ++r)
      for (std::int64_t c = 0; c < piece.box.cols; ++c)
        visit((piece.box.row + r) * layout.shape.cols + piece.box.col + c, piece.offset + r * piece.stride + c);
}

inline layout::Layout partial(layout::Layout layout) {
  layout.state = layout::State::partial;
  return layout;
}

// Returns a layout of random ranges of rows or columns on random ranks. Some ranges are on several ranks. The local
// buffers have gaps.
inline layout::Layout random_layout(std::mt19937& random, layout::Shape shape, int ranks) {
  const auto below = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random); };
  layout::Layout result{.shape = shape, .ranks = std::vector<layout::LocalLayout>(static_cast<std::size_t>(ranks))};
  const bool by_cols = below(2) == 0;
  const std::int64_t extent = by_cols ? shape.cols : shape.rows;
  for (std::int64_t begin = 0; begin < extent;) {
    const std::int64_t size = std::min(extent - begin, 1 + below(4));
    const std::int64_t copies = 1 + below(4) / 3;
    std::set<std::int64_t> holders;
    while (static_cast<std::int64_t>(holders.size()) < std::min<std::int64_t>(copies, ranks))
      holders.insert(below(ranks));
    for (const std::int64_t holder : holders) {
      layout::LocalLayout& local = result.ranks[static_cast<std::size_t>(holder)];
      const layout::Box box =
          by_cols ? layout::Box{0, shape.rows, begin, size} : layout::Box{begin, size, 0, shape.cols};
      const std::int64_t gap = below(3);
      local.pieces.push_back({.box = box, .offset = local.size + gap, .stride = box.cols + below(2)});
      local.size += gap + box.rows * local.pieces.back().stride;
    }
    begin += size;
  }
  return result;
}

}  // namespace tessera::comm
