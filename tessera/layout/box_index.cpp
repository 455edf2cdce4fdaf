#include "tessera/layout/box_index.h"

#include <tuple>

namespace tessera::layout {
namespace {

std::int64_t row_end(const Box& box) {
  return box.row + box.rows;
}

// Returns the rows of `box` that no part covers. `parts` is ordered by first row.
std::vector<Range> row_gaps(const Box& box, const std::vector<Holding>& parts) {
  std::vector<Range> gaps;
  std::int64_t covered_to = box.row;
  for (const Holding& part : parts) {
    if (part.box.row > covered_to) gaps.push_back({covered_to, part.box.row});
    covered_to = std::max(covered_to, row_end(part.box));
  }
  if (covered_to < row_end(box)) gaps.push_back({covered_to, row_end(box)});
  return gaps;
}

}  // namespace

BoxIndex::BoxIndex(std::vector<Holding> holdings) : holdings_(std::move(holdings)) {
  const auto key = [](const Holding& h) { return std::tuple(h.box.row, h.rank, h.box.col); };
  std::sort(holdings_.begin(), holdings_.end(), [&](const Holding& a, const Holding& b) { return key(a) < key(b); });
  reach_.reserve(holdings_.size());
  for (const Holding& holding : holdings_) {
    reach_.push_back(std::max(reach_.empty() ? 0 : reach_.back(), row_end(holding.box)));
  }
}

void BoxIndex::find(const Box& box, std::vector<Holding>& found) const {
  found.clear();
  const auto first = std::upper_bound(reach_.begin(), reach_.end(), box.row) - reach_.begin();
  for (std::size_t i = static_cast<std::size_t>(first); i < holdings_.size(); ++i) {
    const Holding& holding = holdings_[i];
    if (holding.box.row >= row_end(box)) break;
    const auto common = intersect(holding.box, box);
    if (common) found.push_back({.box = *common, .rank = holding.rank, .piece = holding.piece});
  }
}

BoxIndex index_of(const Layout& layout) {
  std::vector<Holding> holdings;
  for (int rank = 0; rank < layout.size(); ++rank) {
    const auto& pieces = layout.ranks[rank].pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      holdings.push_back({.box = pieces[i].box, .rank = rank, .piece = static_cast<int>(i)});
    }
  }
  return BoxIndex(std::move(holdings));
}

std::vector<Box> uncovered(const Box& box, const std::vector<Holding>& clips) {
  std::vector<Box> result;
  // Indices of result boxes whose right edge is the left edge of the strip, from top to bottom.
  std::vector<std::size_t> open;
  for_each_strip(box, clips, [&](Range cols, const std::vector<Holding>& parts) {
    std::vector<std::size_t> now;
    std::size_t next = 0;
    for (const Range& gap : row_gaps(box, parts)) {
      while (next < open.size() && result[open[next]].row < gap.begin) ++next;
      const bool same =
          next < open.size() && result[open[next]].row == gap.begin && result[open[next]].rows == gap.size();
      if (same) {
        result[open[next]].cols += cols.size();
        now.push_back(open[next]);
      } else {
        now.push_back(result.size());
        result.push_back({.row = gap.begin, .rows = gap.size(), .col = cols.begin, .cols = cols.size()});
      }
    }
    open = std::move(now);
  });
  return result;
}

}  // namespace tessera::layout
