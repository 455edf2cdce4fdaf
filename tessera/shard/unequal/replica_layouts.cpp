#include "tessera/shard/unequal/replica_layouts.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"
#include "tessera/layout/box_index.h"
#include "tessera/layout/dense.h"

namespace tessera::shard {
namespace {

using layout::Band, layout::Box, layout::Layout, layout::LocalLayout, layout::Range;

// Returns the local rows [rows.begin, rows.end) of a part, stacked densely.
LocalLayout local_rows(const LocalLayout& local, const Range& rows) {
  std::vector<Band> bands;
  std::int64_t first = 0;  // local row of the band
  for (Band band : layout::bands_of(local)) {
    const std::int64_t count = band.rows();
    const std::int64_t begin = std::clamp<std::int64_t>(rows.begin - first, 0, count);
    const std::int64_t end = std::clamp<std::int64_t>(rows.end - first, 0, count);
    first += count;
    if (begin >= end) continue;
    for (Box& box : band.boxes) box.row += begin, box.rows = end - begin;
    bands.push_back(std::move(band));
  }
  return layout::stack_densely(bands);
}

std::int64_t rows_of(const LocalLayout& local) {
  std::int64_t rows = 0;
  for (const Band& band : layout::bands_of(local)) rows += band.rows();
  return rows;
}

// Returns the boxes that compute group number `group` stores. The groups' shares are proportional to their ranks.
Layout region_of(const Layout& full, const std::vector<GroupLayouts>& groups, std::size_t group,
                 std::int64_t together) {
  std::int64_t before = 0, all = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (g < group) before += groups[g].home.size();
    all += groups[g].home.size();
  }
  const std::int64_t after = before + groups[group].home.size();
  Layout region{.shape = full.shape};
  for (const LocalLayout& local : full.ranks) {
    const std::int64_t units = base::ceil_div(rows_of(local), together);
    const auto bound = [&](std::int64_t ranks) { return units * ranks / all * together; };
    region.ranks.push_back(local_rows(local, {.begin = bound(before), .end = bound(after)}));
  }
  return region;
}

// Returns the rows of a band that the region contains, as ranges of logical rows in ascending order. All boxes of a
// band are in the same rows of the region, so the first box decides.
std::vector<Range> rows_within(const Band& band, const layout::BoxIndex& region) {
  std::vector<layout::Holding> found;
  region.find(band.boxes.front(), found);
  std::vector<Range> ranges;
  for (const layout::Holding& holding : found)
    ranges.push_back({.begin = holding.box.row, .end = holding.box.row + holding.box.rows});
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, range.end);
    else
      joined.push_back(range);
  }
  return joined;
}

LocalLayout within(const LocalLayout& home, const layout::BoxIndex& region) {
  std::vector<Band> bands;
  for (const Band& band : layout::bands_of(home))
    for (const Range& rows : rows_within(band, region)) {
      Band part = band;
      for (Box& box : part.boxes) box.row = rows.begin, box.rows = rows.size();
      bands.push_back(std::move(part));
    }
  return layout::stack_densely(bands);
}

}  // namespace

Layout replica_homes(const std::vector<GroupLayouts>& groups) {
  Layout homes{.shape = groups.front().home.shape};
  for (const GroupLayouts& group : groups)
    homes.ranks.insert(homes.ranks.end(), group.home.ranks.begin(), group.home.ranks.end());
  return homes;
}

Layout replica_storage(const Layout& full, const std::vector<GroupLayouts>& groups, bool is_cut,
                       std::int64_t together) {
  Layout storage = replica_homes(groups);
  if (!is_cut || groups.size() == 1) return storage;
  auto local = storage.ranks.begin();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const Layout region = region_of(full, groups, group, together);
    const layout::BoxIndex index = layout::index_of(region);
    for (int rank = 0; rank < groups[group].home.size(); ++rank, ++local) *local = within(*local, index);
  }
  return storage;
}

void check_replica(const Layout& storage, const Layout& homes, const std::string& name) {
  TESSERA_CHECK(storage.size() == homes.size(), "parameter '{}': {} ranks store parts, expected {}", name,
                storage.size(), homes.size());
  try {
    layout::validate(storage, layout::Cover::exact);
  } catch (const Error& error) {
    throw Error("parameter '{}': each element must be stored once in a replica: {}", name, error.what());
  }
  for (int rank = 0; rank < storage.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const layout::BoxIndex own = layout::index_of({.shape = homes.shape, .ranks = {homes.ranks[at]}});
    std::vector<layout::Holding> found;
    for (const layout::Piece& piece : storage.ranks[at].pieces) {
      own.find(piece.box, found);
      std::int64_t covered = 0;
      for (const layout::Holding& holding : found) covered += holding.box.elements();
      TESSERA_CHECK(
          covered == piece.box.elements(),
          "parameter '{}': rank {} of its replica stores rows [{}, {}) columns [{}, {}), which are not in its "
          "part",
          name, rank, piece.box.row, piece.box.row + piece.box.rows, piece.box.col, piece.box.col + piece.box.cols);
    }
  }
}

}  // namespace tessera::shard
