#include "tessera/shard/plane.h"

#include <algorithm>
#include <numeric>

#include "tessera/layout/dense.h"
#include "tessera/layout/home.h"

namespace tessera::shard {

bool ParameterLayouts::overlaps() const {
  return home != compute || std::ranges::any_of(groups, &GroupLayouts::overlaps);
}

GroupLayouts ParameterLayouts::group(int part) const {
  if (groups.empty()) return {compute, home};
  return groups[static_cast<std::size_t>(part)];
}

layout::Layout ParameterLayouts::stored(int compute_rank, int parts) const {
  const layout::Layout part = layout::select(home, {compute_rank});
  if (!is_cut) return layout::repeat(part, parts);
  const std::int64_t rows = matrix_rows.empty() ? 0 : matrix_rows[static_cast<std::size_t>(compute_rank)];
  return layout::cut_local_rows(part, parts, {.rows = together, .matrix_rows = rows});
}

ParameterLayouts::RowsOfStack ParameterLayouts::rows_of(const layout::LocalLayout& local) const {
  const std::int64_t rows = layout::dense_shape(local, "updated").rows;
  if (!matrix_rows.empty() && together > 1 && rows > 0)
    for (std::size_t rank = 0; rank < home.ranks.size(); ++rank)
      if (const auto row = layout::local_row(home.ranks[rank], local.pieces.front().box))
        return {{*row, *row + rows}, {.rows = together, .matrix_rows = matrix_rows[rank]}};
  return {{0, rows}, {.rows = together}};
}

std::vector<layout::LocalLayout> ParameterLayouts::updated(const layout::LocalLayout& local, int replicas) const {
  const auto& [rows, units] = rows_of(local);
  const std::vector<layout::Band> bands = layout::bands_of(local);
  std::vector<layout::LocalLayout> parts;
  for (int replica = 0; replica < replicas; ++replica) {
    const layout::Range part = layout::unit_part(rows, units, replica, replicas);
    parts.push_back(layout::stack_densely(layout::rows_of(bands, {part.begin - rows.begin, part.end - rows.begin})));
  }
  return parts;
}

std::int64_t ParameterLayouts::updated_elements(const layout::LocalLayout& local, int replicas, int replica) const {
  const auto& [rows, units] = rows_of(local);
  return layout::unit_part(rows, units, replica, replicas).size() * layout::dense_shape(local, "updated").cols;
}

std::vector<int> ParameterLayouts::extreme_replicas(int replicas) const {
  // Earlier parts are not smaller if all units have the same number of rows.
  if (std::ranges::all_of(matrix_rows, [&](std::int64_t rows) { return rows % together == 0; }))
    return {0, replicas - 1};
  std::vector<int> all(static_cast<std::size_t>(replicas));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::int64_t RankParts::matrices() const {
  if (layouts.matrix_rows.empty()) return 1;
  if (matrix_rows == 0 || local_compute.size == 0) return 0;
  return layout::dense_shape(local_compute, "matrices").rows / matrix_rows;
}

}  // namespace tessera::shard
