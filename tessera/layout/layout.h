// A layout describes the part of a logical tensor that each rank holds, and the offsets in its local buffer. A layout
// consists of integers only.
//
// A layout has a list of pieces for each rank. A piece is a box of the logical matrix at an offset of the local buffer.
// The rows of a piece are `stride` elements apart in the buffer. Parts of different ranks may overlap, for example if
// several tp ranks need the same key/value head. Padding is the part of the local buffer that no piece covers. The
// logical tensor has no padding.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/layout/box.h"

namespace tessera::layout {

struct Piece {
  Box box;                  // of the logical matrix; not empty
  std::int64_t offset = 0;  // elements from the start of the local buffer to the box's first element
  std::int64_t stride = 0;  // elements between the starts of two rows, >= box.cols
  bool operator==(const Piece&) const = default;
};

// One rank's part. Pieces are in the order of their offsets. Pieces share no elements of the buffer and contain no
// logical element twice.
struct LocalLayout {
  std::vector<Piece> pieces = {};
  std::int64_t size = 0;         // elements of the local buffer, including padding
  std::int64_t covered() const;  // elements of all pieces
  bool operator==(const LocalLayout&) const = default;
};

// The meaning of the values if several ranks hold the same logical element.
enum class State {
  replicated,  // equal values
  partial,     // summands; the element is their sum in rank order
};

struct Layout {
  Shape shape;  // of the logical tensor, without padding
  std::vector<LocalLayout> ranks = {};
  State state = State::replicated;

  int size() const { return static_cast<int>(ranks.size()); }
  bool operator==(const Layout&) const = default;
};

// A range of rows of the logical matrix that is sharded separately. For example, gate and up are two blocks of one
// weight, and q, k and v are three blocks of another. `unit` is the number of rows that stay together, such as the rows
// of a head. The blocks of a matrix cover its rows in order.
struct Block {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t unit = 1;
  bool operator==(const Block&) const = default;
};

// The half-open range [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Divides n elements into `count` parts as evenly as possible. Returns part `index`: [n*index/count,
// n*(index+1)/count).
Range even_part(std::int64_t n, int index, int count);
// Divides n elements into `count` parts of ceil(n/count) elements, rounded up to a multiple of `align`. The last parts
// are smaller or empty. Returns part `index`.
Range ceil_part(std::int64_t n, int index, int count, std::int64_t align = 1);

// Every rank holds the whole tensor.
Layout replicated(Shape shape, int ranks);
// Rank r holds even_part(units, r, ranks) of the units of each block. The rows of a rank are stacked densely, in the
// order of the blocks. One block with unit 1 divides the rows evenly. Throws Error if the blocks do not cover the rows
// exactly, or if a unit does not divide its block. Only tests call this function.
Layout cut_rows(Shape shape, const std::vector<Block>& blocks, int ranks);
// Rank r holds all rows of the columns even_part(cols / unit, r, ranks) * unit. Throws Error if the unit does not
// divide the columns. Only tests call this function.
Layout cut_cols(Shape shape, int ranks, std::int64_t unit = 1);
// Rank r holds all columns of the rows `ranges[r]`, stacked densely in this order. Ranks may overlap. Throws Error for
// a range outside the shape, and if the ranges of one rank overlap.
Layout rows_by_rank(Shape shape, const std::vector<std::vector<Range>>& ranges);

// How the rows of a dense local matrix are grouped. The matrix is a stack of matrices with `matrix_rows` rows each.
// Each of them is divided into units of `rows` rows; its last unit may be shorter. 0 matrix rows: the rows are one
// matrix.
struct RowUnits {
  std::int64_t rows = 1, matrix_rows = 0;
};
// Divides the units within a range of rows into `count` parts as ceil_part does. Returns the rows of part `index`. The
// range begins and ends between two units of a stack, or it is one matrix and begins anywhere. Throws Error for units
// without rows, and for a range of a stack that begins or ends inside a unit.
Range unit_part(Range rows, const RowUnits& units, int index, int count);

// Divides every rank's local rows over `inner` ranks with unit_part, and stacks them densely. Local rows are the rows
// of the dense local matrix (dense.h), without the padding of `outer`. Inner shard i of outer rank o belongs to rank o
// + outer.size() * i of the result, as tp varies before gtp. Throws Error if the rows of a rank have different widths.
Layout cut_local_rows(const Layout& outer, int inner, const RowUnits& units);
// Like the function above, with one matrix of units of `align` rows. With `padded`, all shards of one outer rank have
// the same size. The number of rows of a shard is then ceil(rows / inner), rounded up to a multiple of `align`. Without
// `padded`, shards have their true size.
Layout cut_local_rows(const Layout& outer, int inner, std::int64_t align = 1, bool padded = false);
// Repeats the layout for `groups` groups of ranks. Rank r of group c is r + size * c.
Layout repeat(const Layout& layout, int groups);
// Returns the layout of the given ranks, in the given order. Throws Error for a rank that does not exist or is listed
// twice.
Layout select(const Layout& layout, const std::vector<int>& ranks);

// Requirement of validate on all ranks together. `any`: no requirement. `all`: each logical element is on at least one
// rank. `exact`: each logical element is on exactly one rank.
enum class Cover { any, all, exact };
// Throws Error for an invalid layout. The message names the rank and the piece, or the box and its holders. Pieces are
// invalid if they are empty, outside the shape or the buffer, or not in the order of their offsets. Pieces of one rank
// must share no element of the buffer and no logical element. With Cover::all and Cover::exact, an element that no rank
// holds is an error. With Cover::exact, an element that several ranks hold is an error. Any numbers are safe to pass.
void validate(const Layout& layout, Cover cover = Cover::any);

// Returns one line per rank: "rank 0: rows [0, 4) cols [0, 8) at 0; ... of 32". Only tests call this function.
std::string to_string(const Layout& layout);

}  // namespace tessera::layout
