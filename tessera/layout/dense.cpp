#include "tessera/layout/dense.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/layout/merge.h"

namespace tessera::layout {

std::int64_t Band::cols() const {
  std::int64_t cols = 0;
  for (const Box& box : boxes) cols += box.cols;
  return cols;
}

std::vector<Band> bands_of(const LocalLayout& local) {
  std::vector<Band> bands;
  const Piece* first = nullptr;  // first piece of the last band
  for (const Piece& piece : local.pieces) {
    const bool beside = first != nullptr && piece.box.row == first->box.row && piece.box.rows == first->box.rows &&
                        piece.offset - first->offset < first->stride;
    if (!beside) {
      bands.emplace_back();
      first = &piece;
    }
    bands.back().boxes.push_back(piece.box);
  }
  return bands;
}

std::vector<Band> rows_of(const std::vector<Band>& bands, Range rows) {
  std::vector<Band> taken;
  std::int64_t first = 0;  // local row of the band
  for (const Band& band : bands) {
    const std::int64_t begin = std::max(rows.begin, first), end = std::min(rows.end, first + band.rows());
    if (begin < end) {
      taken.push_back(band);
      for (Box& box : taken.back().boxes) {
        box.row += begin - first;
        box.rows = end - begin;
      }
    }
    first += band.rows();
  }
  return taken;
}

LocalLayout stack_densely(const std::vector<Band>& bands) {
  LocalLayout local;
  for (const Band& band : bands) {
    const std::int64_t cols = band.cols();
    std::int64_t at = local.size;
    for (const Box& box : band.boxes) {
      if (!box.empty()) local.pieces.push_back({.box = box, .offset = at, .stride = cols});
      at += box.cols;
    }
    local.size += band.rows() * cols;
  }
  local.pieces = merge_adjacent(local.pieces);
  return local;
}

Shape dense_shape(const LocalLayout& local, const std::string& what) {
  Shape shape;
  for (const Band& band : bands_of(local)) {
    if (shape.rows == 0) shape.cols = band.cols();
    if (band.cols() != shape.cols)
      throw Error("{}: the rows from {} have {} columns, expected {} as in the first rows of the local matrix", what,
                  band.boxes.front().row, band.cols(), shape.cols);
    shape.rows += band.rows();
  }
  return shape;
}

std::optional<std::int64_t> local_row(const LocalLayout& local, const Box& box) {
  std::int64_t before = 0;
  for (const Band& band : bands_of(local)) {
    for (const Box& own : band.boxes)
      if (own.row <= box.row && box.row < own.row + own.rows && own.col <= box.col && box.col < own.col + own.cols)
        return before + box.row - own.row;
    before += band.rows();
  }
  return std::nullopt;
}

bool is_dense(const LocalLayout& local) {
  const std::int64_t width = local.pieces.empty() ? 0 : local.pieces.front().stride;
  std::int64_t at = 0, col = 0;  // offset of the band's first element, and column of the piece in the band
  const Piece* first = nullptr;  // first piece of the band
  for (const Piece& piece : local.pieces) {
    if (col == 0) first = &piece;
    const bool same_rows = piece.box.row == first->box.row && piece.box.rows == first->box.rows;
    if ((col > 0 && !same_rows) || piece.stride != width || piece.offset != at + col) return false;
    col += piece.box.cols;
    if (col > width) return false;
    if (col < width) continue;
    at += piece.box.rows * width;
    col = 0;
  }
  return col == 0 && at == local.size;
}

LocalLayout with_local_columns(const LocalLayout& local) {
  std::vector<Band> bands = bands_of(local);
  if (bands.size() == local.pieces.size()) return local;
  for (Band& band : bands) {
    if (band.boxes.size() == 1) continue;
    Box whole = band.boxes.front();
    whole.col = 0;
    whole.cols = band.cols();
    band.boxes = {whole};
  }
  return stack_densely(bands);
}

Layout cols_by_rank(Shape shape, const std::vector<std::vector<Range>>& ranges) {
  if (shape.rows < 0 || shape.cols < 0)
    throw Error("cols_by_rank: shape {} x {}, expected no negative extent", shape.rows, shape.cols);
  Layout layout{.shape = shape};
  for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
    Band band;
    for (const Range& range : ranges[rank]) {
      if (range.begin < 0 || range.begin > range.end || range.end > shape.cols)
        throw Error("cols_by_rank: rank {} columns [{}, {}), expected a range within [0, {})", rank, range.begin,
                    range.end, shape.cols);
      band.boxes.push_back({.row = 0, .rows = shape.rows, .col = range.begin, .cols = range.size()});
    }
    layout.ranks.push_back(band.boxes.empty() ? LocalLayout{} : stack_densely({band}));
  }
  validate(layout);  // the ranges of one rank may overlap
  return layout;
}

}  // namespace tessera::layout
