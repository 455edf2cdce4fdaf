// Finds the pieces of a layout that overlap a box, without a scan of all pieces. Divides a box into parts, each of
// which is held by one set of ranks. Used by redistribute.h, validate() and home.h.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// A box that a rank holds. `piece` is the index of the box among the rank's pieces.
struct Holding {
  Box box;
  int rank = 0;
  int piece = 0;
};

// Immutable. A query takes a binary search and a scan of the holdings that share rows with the box.
class BoxIndex {
 public:
  explicit BoxIndex(std::vector<Holding> holdings);

  // Sets `found` to the nonempty intersections of the holdings with `box`. The intersections are ordered by their first
  // rows.
  void find(const Box& box, std::vector<Holding>& found) const;

 private:
  std::vector<Holding> holdings_;    // by (row, rank, col)
  std::vector<std::int64_t> reach_;  // reach_[i]: the largest row end of holdings_[0..i]
};

BoxIndex index_of(const Layout& layout);

// Divides `box` into strips of columns and calls visit(columns, parts) for each strip, from left to right. `parts`
// contains the elements of `clips` that span the strip's columns, in the order of their first rows. No clip begins or
// ends inside a strip. All clips must be within `box`, in the order of their first rows.
template <typename Visit>
void for_each_strip(const Box& box, const std::vector<Holding>& clips, Visit visit) {
  const std::int64_t col_end = box.col + box.cols;
  const auto spans_box = [&](const Holding& clip) { return clip.box.cols == box.cols; };
  if (std::all_of(clips.begin(), clips.end(), spans_box)) return visit(Range{box.col, col_end}, clips);

  std::vector<std::int64_t> cuts{box.col, col_end};
  for (const Holding& clip : clips) cuts.insert(cuts.end(), {clip.box.col, clip.box.col + clip.box.cols});
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());

  std::vector<std::size_t> by_col(clips.size()), active;  // indices of clips; ascending indices are in row order
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

// Returns the parts of `box` outside all `clips`, from left to right and top to bottom. Joins parts with equal rows in
// adjacent strips.
std::vector<Box> uncovered(const Box& box, const std::vector<Holding>& clips);

}  // namespace tessera::layout
