#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/layout/box_index.h"
#include "tessera/layout/layout.h"

namespace tessera::layout {
namespace {

std::string describe(const Box& box) {
  return fmt::format("rows [{}, {}) cols [{}, {})", box.row, box.row + box.rows, box.col, box.col + box.cols);
}

// Returns the offset after the piece's last element in the local buffer.
std::int64_t local_end(const Piece& piece) {
  return piece.offset + (piece.box.rows - 1) * piece.stride + piece.box.cols;
}

struct Place {
  int rank = 0;
  std::size_t piece = 0;
};
std::string describe(Place place) {
  return fmt::format("layout: rank {} piece {}", place.rank, place.piece);
}

// The comparisons contain no sums, because sums of arbitrary numbers could overflow.
void validate_piece(const Piece& piece, Shape shape, std::int64_t size, Place place) {
  const Box& box = piece.box;
  if (box.rows < 1 || box.cols < 1) {
    throw Error("{}: {} x {} elements, expected a piece that is not empty", describe(place), box.rows, box.cols);
  }
  const bool rows_inside = box.row >= 0 && box.rows <= shape.rows && box.row <= shape.rows - box.rows;
  const bool cols_inside = box.col >= 0 && box.cols <= shape.cols && box.col <= shape.cols - box.cols;
  if (!rows_inside || !cols_inside) {
    throw Error("{}: {} rows from {} and {} columns from {}, expected a box within the shape {} x {}", describe(place),
                box.rows, box.row, box.cols, box.col, shape.rows, shape.cols);
  }
  if (piece.stride < box.cols) {
    throw Error("{}: stride {}, expected at least its {} columns", describe(place), piece.stride, box.cols);
  }
  const bool first_row_inside = piece.offset >= 0 && box.cols <= size && piece.offset <= size - box.cols;
  if (!first_row_inside || box.rows - 1 > (size - box.cols - piece.offset) / piece.stride) {
    throw Error("{}: {} at offset {} with stride {} ends outside the local buffer of {} elements", describe(place),
                describe(box), piece.offset, piece.stride, size);
  }
}

// A piece of one row may have any stride, so a sum with `by` could overflow.
std::int64_t floor_div(std::int64_t value, std::int64_t by) {
  return value / by - (value % by < 0 ? 1 : 0);
}

// For two pieces with the same stride. Row i of `a` and row i + m of `b` share elements if -b.cols < distance + m *
// stride < a.cols, where `distance` is the difference of the offsets. Returns whether both pieces have such rows for
// some m.
bool share_rows(const Piece& a, const Piece& b) {
  const std::int64_t distance = b.offset - a.offset;
  const std::int64_t first = floor_div(-b.box.cols - distance, a.stride) + 1;
  const std::int64_t last = floor_div(a.box.cols - distance - 1, a.stride);
  return std::max(first, 1 - a.box.rows) <= std::min(last, b.box.rows - 1);
}

// Returns whether two pieces share elements of the buffer. If their strides differ, compares each row of the piece with
// fewer rows with the nearest row of the other piece.
bool share_buffer(const Piece& a, const Piece& b) {
  if (local_end(a) <= b.offset || local_end(b) <= a.offset) return false;
  if (a.stride == b.stride) return share_rows(a, b);
  const Piece& few = a.box.rows <= b.box.rows ? a : b;
  const Piece& many = a.box.rows <= b.box.rows ? b : a;
  for (std::int64_t row = 0; row < few.box.rows; ++row) {
    const std::int64_t begin = few.offset + row * few.stride, end = begin + few.box.cols;
    // The last row of `many` that begins before `end` also ends last. Therefore only this row is compared.
    if (many.offset >= end) continue;
    const std::int64_t last = std::min((end - 1 - many.offset) / many.stride, many.box.rows - 1);
    if (many.offset + last * many.stride + many.box.cols > begin) return true;
  }
  return false;
}

void validate_buffer_overlap(const LocalLayout& local, int rank) {
  const auto& pieces = local.pieces;
  std::vector<std::size_t> open;  // earlier pieces that end after the current piece's first element
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0 && pieces[i].offset < pieces[i - 1].offset) {
      throw Error("layout: rank {} piece {} at offset {} follows a piece at {}, expected ascending offsets", rank, i,
                  pieces[i].offset, pieces[i - 1].offset);
    }
    std::erase_if(open, [&](std::size_t other) { return local_end(pieces[other]) <= pieces[i].offset; });
    for (const std::size_t other : open) {
      if (!share_buffer(pieces[other], pieces[i])) continue;
      throw Error("layout: rank {} pieces {} and {} share elements of the local buffer (offsets {} and {})", rank,
                  other, i, pieces[other].offset, pieces[i].offset);
    }
    open.push_back(i);
  }
}

// Checks that no rank holds an element twice, because such an element would be added twice.
void validate_held_once(const LocalLayout& local, int rank) {
  if (local.pieces.size() < 2) return;
  const BoxIndex index = index_of({.shape = {}, .ranks = {local}});
  std::vector<Holding> found;
  for (std::size_t i = 0; i < local.pieces.size(); ++i) {
    index.find(local.pieces[i].box, found);
    for (const Holding& other : found) {
      if (other.piece == static_cast<int>(i)) continue;
      throw Error("layout: rank {} pieces {} and {} both hold {}", rank, i, other.piece, describe(other.box));
    }
  }
}

void validate_all_held(const Layout& layout, const BoxIndex& index) {
  const Box whole{.row = 0, .rows = layout.shape.rows, .col = 0, .cols = layout.shape.cols};
  if (whole.empty()) return;
  std::vector<Holding> found;
  index.find(whole, found);
  const auto gaps = uncovered(whole, found);
  if (!gaps.empty())
    throw Error("layout: {} of {} x {} are held by no rank", describe(gaps.front()), whole.rows, whole.cols);
}

void validate_one_holder(const Layout& layout, const BoxIndex& index) {
  std::vector<Holding> found;
  for (int rank = 0; rank < layout.size(); ++rank) {
    for (const Piece& piece : layout.ranks[rank].pieces) {
      index.find(piece.box, found);
      for (const Holding& other : found) {
        if (other.rank == rank) continue;
        throw Error("layout: {} are held by ranks {} and {}, expected one", describe(other.box), rank, other.rank);
      }
    }
  }
}

}  // namespace

void validate(const Layout& layout, Cover cover) {
  if (layout.shape.rows < 0 || layout.shape.cols < 0) {
    throw Error("layout: shape {} x {}, expected no negative extent", layout.shape.rows, layout.shape.cols);
  }
  for (int rank = 0; rank < layout.size(); ++rank) {
    const LocalLayout& local = layout.ranks[rank];
    if (local.size < 0)
      throw Error("layout: rank {} has a buffer of {} elements, expected 0 or more", rank, local.size);
    for (std::size_t i = 0; i < local.pieces.size(); ++i) {
      validate_piece(local.pieces[i], layout.shape, local.size, {.rank = rank, .piece = i});
    }
    validate_buffer_overlap(local, rank);
    validate_held_once(local, rank);
  }
  if (cover == Cover::any) return;
  const BoxIndex index = index_of(layout);
  validate_all_held(layout, index);
  if (cover == Cover::exact) validate_one_holder(layout, index);
}

}  // namespace tessera::layout
