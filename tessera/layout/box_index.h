// Which pieces of a layout meet a box, without looking at all of them; and a box cut so that each part has one set of
// holders. What redistribution, validation and homes are made of.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// A box that a rank holds. `piece` is the index of the piece in the list the holding was made from.
struct Holding {
  Box box;
  int rank = 0;
  int piece = 0;
};

// Immutable. A query costs a binary search and the holdings that share rows with the box.
class BoxIndex {
 public:
  explicit BoxIndex(std::vector<Holding> holdings);

  // The common parts of the holdings and `box`, by ascending first row. Replaces the contents of `found`.
  void find(const Box& box, std::vector<Holding>& found) const;

 private:
  std::vector<Holding> holdings_;    // by (row, rank, col)
  std::vector<std::int64_t> reach_;  // reach_[i]: the last row end of holdings_[0..i]
};

BoxIndex index_of(const Layout& layout);

// Calls visit(columns, parts) for strips of columns, left to right, that together are `box`. `parts` are those of
// `clips` that span the strip's columns, by ascending first row; none ends inside it. `clips` lie within
// `box`, in that same order.
template <typename Visit>
void for_each_strip(const Box& box, const std::vector<Holding>& clips, Visit visit) {
  const std::int64_t col_end = box.col + box.cols;
  const auto spans_box = [&](const Holding& clip) { return clip.box.cols == box.cols; };
  if (std::all_of(clips.begin(), clips.end(), spans_box)) return visit(Range{box.col, col_end}, clips);

  std::vector<std::int64_t> cuts{box.col, col_end};
  for (const Holding& clip : clips) cuts.insert(cuts.end(), {clip.box.col, clip.box.col + clip.box.cols});
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());

  std::vector<std::size_t> by_col(clips.size()), active;  // indices: their order is the order of rows
  for (std::size_t i = 0; i < clips.size(); ++i) by_col[i] = i;
  std::stable_sort(by_col.begin(), by_col.end(),
                   [&](std::size_t a, std::size_t b) { return clips[a].box.col < clips[b].box.col; });
  std::vector<Holding> parts;
  std::size_t next = 0;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::erase_if(active, [&](std::size_t a) { return clips[a].box.col + clips[a].box.cols <= cuts[i]; });
    while (next < by_col.size() && clips[by_col[next]].box.col == cuts[i]) active.push_back(by_col[next++]);
    std::sort(active.begin(), active.end());
    parts.clear();
    for (const std::size_t a : active) parts.push_back(clips[a]);
    visit(Range{cuts[i], cuts[i + 1]}, parts);
  }
}

// The parts of `box` that none of `clips` covers, left to right, top to bottom; neighbours in a row of strips joined.
std::vector<Box> uncovered(const Box& box, const std::vector<Holding>& clips);

}  // namespace tessera::layout
