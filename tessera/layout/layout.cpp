#include "tessera/layout/layout.h"

#include <algorithm>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"
#include "tessera/layout/dense.h"

namespace tessera::layout {
namespace {

void require_ranks(const char* function, int ranks) {
  if (ranks < 1) throw Error("{}: {} ranks, expected 1 or more", function, ranks);
}

void require_shape(const char* function, Shape shape) {
  if (shape.rows >= 0 && shape.cols >= 0) return;
  throw Error("{}: shape {} x {}, expected no negative extent", function, shape.rows, shape.cols);
}

void require_part(const char* function, std::int64_t n, int index, int count) {
  if (n < 0) throw Error("{}: {} elements, expected 0 or more", function, n);
  if (count < 1) throw Error("{}: {} parts, expected 1 or more", function, count);
  if (index < 0 || index >= count) throw Error("{}: part {}, expected [0, {})", function, index, count);
}

// Stacks boxes of equal width from top to bottom, without gaps.
LocalLayout stack_boxes(const std::vector<Box>& boxes) {
  std::vector<Band> bands;
  for (const Box& box : boxes) bands.push_back({{box}});
  return stack_densely(bands);
}

std::int64_t ceil_part_size(std::int64_t n, int count, std::int64_t align) {
  return base::ceil_div(base::ceil_div(n, count), align) * align;
}

std::string describe(const Piece& piece) {
  const Box& box = piece.box;
  std::string text = fmt::format("rows [{}, {}) cols [{}, {}) at {}", box.row, box.row + box.rows, box.col,
                                 box.col + box.cols, piece.offset);
  if (piece.stride != box.cols && box.rows > 1) text += fmt::format(" stride {}", piece.stride);
  return text;
}

}  // namespace

std::int64_t LocalLayout::covered() const {
  std::int64_t elements = 0;
  for (const Piece& piece : pieces) elements += piece.box.elements();
  return elements;
}

Range even_part(std::int64_t n, int index, int count) {
  require_part("even_part", n, index, count);
  // Computes n * index / count without overflow.
  const auto bound = [&](std::int64_t i) { return n / count * i + n % count * i / count; };
  return {.begin = bound(index), .end = bound(index + 1)};
}

Range ceil_part(std::int64_t n, int index, int count, std::int64_t align) {
  require_part("ceil_part", n, index, count);
  if (align < 1) throw Error("ceil_part: alignment {}, expected 1 or more", align);
  const std::int64_t part = ceil_part_size(n, count, align);
  return {.begin = std::min(n, part * index), .end = std::min(n, part * (index + 1))};
}

namespace {

// Returns the number of units before a row of a stack.
std::int64_t units_before(std::int64_t row, const RowUnits& units) {
  const std::int64_t in_matrix = row % units.matrix_rows;
  if (in_matrix % units.rows != 0)
    throw Error("unit_part: row {} is inside a unit of {} rows of a matrix of {} rows", row, units.rows,
                units.matrix_rows);
  const std::int64_t of_matrix = (units.matrix_rows + units.rows - 1) / units.rows;
  return row / units.matrix_rows * of_matrix + in_matrix / units.rows;
}

// Returns the first row of a unit of a stack.
std::int64_t first_row(std::int64_t unit, const RowUnits& units) {
  const std::int64_t of_matrix = (units.matrix_rows + units.rows - 1) / units.rows;
  return unit / of_matrix * units.matrix_rows + unit % of_matrix * units.rows;
}

}  // namespace

Range unit_part(Range rows, const RowUnits& units, int index, int count) {
  if (units.rows < 1 || units.matrix_rows < 0)
    throw Error("unit_part: units of {} rows of matrices of {} rows, expected at least 1 and 0", units.rows,
                units.matrix_rows);
  if (units.matrix_rows == 0) {
    const Range part = ceil_part(rows.size(), index, count, units.rows);
    return {rows.begin + part.begin, rows.begin + part.end};
  }
  const std::int64_t first = units_before(rows.begin, units), end = units_before(rows.end, units);
  const Range part = ceil_part(end - first, index, count);
  return {first_row(first + part.begin, units), first_row(first + part.end, units)};
}

Layout replicated(Shape shape, int ranks) {
  require_ranks("replicated", ranks);
  require_shape("replicated", shape);
  const LocalLayout whole = stack_boxes({{.row = 0, .rows = shape.rows, .col = 0, .cols = shape.cols}});
  return {.shape = shape, .ranks = std::vector<LocalLayout>(static_cast<std::size_t>(ranks), whole)};
}

Layout cut_rows(Shape shape, const std::vector<Block>& blocks, int ranks) {
  require_ranks("cut_rows", ranks);
  require_shape("cut_rows", shape);
  std::int64_t rows = 0;
  for (const Block& block : blocks) {
    if (block.rows < 0 || block.unit < 1 || block.rows % block.unit != 0) {
      throw Error("cut_rows: block '{}' has {} rows in units of {}, expected a multiple of a unit of 1 or more",
                  block.name, block.rows, block.unit);
    }
    rows += block.rows;
  }
  if (rows != shape.rows) throw Error("cut_rows: the blocks have {} rows, expected the shape's {}", rows, shape.rows);

  Layout layout{.shape = shape};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Box> boxes;
    std::int64_t first = 0;  // logical row of the block
    for (const Block& block : blocks) {
      const Range units = even_part(block.rows / block.unit, rank, ranks);
      boxes.push_back(
          {.row = first + units.begin * block.unit, .rows = units.size() * block.unit, .col = 0, .cols = shape.cols});
      first += block.rows;
    }
    layout.ranks.push_back(stack_boxes(boxes));
  }
  return layout;
}

Layout cut_cols(Shape shape, int ranks, std::int64_t unit) {
  require_ranks("cut_cols", ranks);
  require_shape("cut_cols", shape);
  if (unit < 1 || shape.cols % unit != 0) {
    throw Error("cut_cols: {} columns in units of {}, expected a multiple of a unit of 1 or more", shape.cols, unit);
  }
  Layout layout{.shape = shape};
  for (int rank = 0; rank < ranks; ++rank) {
    const Range units = even_part(shape.cols / unit, rank, ranks);
    layout.ranks.push_back(
        stack_boxes({{.row = 0, .rows = shape.rows, .col = units.begin * unit, .cols = units.size() * unit}}));
  }
  return layout;
}

Layout rows_by_rank(Shape shape, const std::vector<std::vector<Range>>& ranges) {
  require_shape("rows_by_rank", shape);
  Layout layout{.shape = shape};
  for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
    std::vector<Box> boxes;
    for (const Range& range : ranges[rank]) {
      if (range.begin < 0 || range.begin > range.end || range.end > shape.rows) {
        throw Error("rows_by_rank: rank {} rows [{}, {}), expected a range within [0, {})", rank, range.begin,
                    range.end, shape.rows);
      }
      boxes.push_back({.row = range.begin, .rows = range.size(), .col = 0, .cols = shape.cols});
    }
    layout.ranks.push_back(stack_boxes(boxes));
  }
  validate(layout);  // the ranges of one rank may overlap
  return layout;
}

Layout cut_local_rows(const Layout& outer, int inner, const RowUnits& units) {
  require_ranks("cut_local_rows", inner);
  std::vector<std::int64_t> rows;
  std::vector<std::vector<Band>> bands;
  for (int rank = 0; rank < outer.size(); ++rank) {
    rows.push_back(dense_shape(outer.ranks[rank], fmt::format("cut_local_rows: rank {}", rank)).rows);
    bands.push_back(bands_of(outer.ranks[rank]));
  }
  Layout layout{.shape = outer.shape, .state = outer.state};
  for (int part = 0; part < inner; ++part)
    for (int rank = 0; rank < outer.size(); ++rank)
      layout.ranks.push_back(stack_densely(rows_of(bands[rank], unit_part({0, rows[rank]}, units, part, inner))));
  return layout;
}

Layout cut_local_rows(const Layout& outer, int inner, std::int64_t align, bool padded) {
  Layout layout = cut_local_rows(outer, inner, RowUnits{.rows = align});
  for (std::size_t rank = 0; padded && rank < layout.ranks.size(); ++rank) {
    const Shape local = dense_shape(outer.ranks[rank % outer.ranks.size()], "cut_local_rows");
    layout.ranks[rank].size = ceil_part_size(local.rows, inner, align) * local.cols;
  }
  return layout;
}

Layout repeat(const Layout& layout, int groups) {
  require_ranks("repeat", groups);
  Layout repeated{.shape = layout.shape, .state = layout.state};
  for (int group = 0; group < groups; ++group) {
    repeated.ranks.insert(repeated.ranks.end(), layout.ranks.begin(), layout.ranks.end());
  }
  return repeated;
}

Layout select(const Layout& layout, const std::vector<int>& ranks) {
  Layout selected{.shape = layout.shape, .state = layout.state};
  std::vector<bool> taken(layout.ranks.size());
  for (const int rank : ranks) {
    if (rank < 0 || rank >= layout.size()) throw Error("select: rank {}, expected [0, {})", rank, layout.size());
    if (taken[rank]) throw Error("select: rank {} is listed twice", rank);
    taken[rank] = true;
    selected.ranks.push_back(layout.ranks[rank]);
  }
  return selected;
}

std::string to_string(const Layout& layout) {
  std::string text;
  for (int rank = 0; rank < layout.size(); ++rank) {
    const LocalLayout& local = layout.ranks[rank];
    text += fmt::format("rank {}: ", rank);
    for (std::size_t i = 0; i < local.pieces.size(); ++i) text += (i > 0 ? "; " : "") + describe(local.pieces[i]);
    text += fmt::format("{} of {}\n", local.pieces.empty() ? "nothing" : "", local.size);
  }
  return text;
}

}  // namespace tessera::layout
