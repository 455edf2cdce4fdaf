// Which rank keeps which part of a logical tensor, and where in its local buffer. Integers only.
//
// A layout is a list of pieces a rank. A piece is a box of the logical matrix at an offset of the local buffer, rows
// `stride` elements apart. Parts of different ranks may overlap (a key/value head needed on several tp ranks). Padding
// is room in the local buffer that no piece covers: nothing but that buffer knows it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/layout/box.h"

namespace tessera::layout {

struct Piece {
  Box box;                  // of the logical matrix, not empty
  std::int64_t offset = 0;  // elements from the start of the local buffer to the box's first element
  std::int64_t stride = 0;  // elements between the starts of two rows, >= box.cols
  bool operator==(const Piece&) const = default;
};

// One rank's part. Pieces are in local order (ascending offset), do not share elements of the buffer, and hold no
// logical element twice.
struct LocalLayout {
  std::vector<Piece> pieces = {};
  std::int64_t size = 0;         // elements of the local buffer, padding included
  std::int64_t covered() const;  // elements that belong to pieces
  bool operator==(const LocalLayout&) const = default;
};

// What the values of one logical element mean when several ranks hold it.
enum class State {
  replicated,  // equal values
  partial,     // parts to be summed in rank order
};

struct Layout {
  Shape shape;  // logical, true: no padding
  std::vector<LocalLayout> ranks = {};
  State state = State::replicated;

  int size() const { return static_cast<int>(ranks.size()); }
  bool operator==(const Layout&) const = default;
};

// A run of rows of the logical matrix that is cut on its own: gate and up of one stacked weight; q, k and v.
// unit: rows that stay together (a head). Blocks tile the rows in order.
struct Block {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t unit = 1;
};

// The half-open range [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `count` of n things as evenly as possible: [n*index/count, n*(index+1)/count).
Range even_part(std::int64_t n, int index, int count);
// Part `index` of `count` in equal parts of ceil(n/count) rounded up to `align`; the last parts hold less, or nothing.
Range ceil_part(std::int64_t n, int index, int count, std::int64_t align = 1);

// Every rank holds everything.
Layout replicated(Shape shape, int ranks);
// Rank r holds, of each block in order, even_part of the block's units; its rows stacked densely. One block with unit 1
// is the plain even cut by rows. Errors: blocks that do not tile the rows, a unit that does not divide its block. Only
// tests call it.
Layout cut_rows(Shape shape, const std::vector<Block>& blocks, int ranks);
// Rank r holds all rows of the columns even_part(cols / unit, r) * unit. Errors: a unit that does not divide the
// columns. Only tests call it.
Layout cut_cols(Shape shape, int ranks, std::int64_t unit = 1);
// Given rank by rank: rank r holds these row ranges of all columns (in this order, stacked densely). Ranks may overlap.
// Errors: a range outside the shape, a rank that asks for a row twice.
Layout rows_by_rank(Shape shape, const std::vector<std::vector<Range>>& ranges);

// Cuts every rank's local rows again over `inner` ranks with ceil_part, and stacks them densely in shards of equal size
// when `padded` (size = ceil rows * width), else of their true size. Local rows are those of the dense local matrix:
// pieces of one rank must have equal width, and the outer layout's padding counts for nothing. Rank (o, i) of the
// result is o + outer * i (outer fastest, as tp before gtp).
Layout cut_local_rows(const Layout& outer, int inner, std::int64_t align = 1, bool padded = false);
// Repeats the layout for `groups` groups: rank (r, c) is r + size * c.
Layout repeat(const Layout& layout, int groups);
// The layout of a subset of the ranks, in the order given. Errors: a rank that is not there or listed twice.
Layout select(const Layout& layout, const std::vector<int>& ranks);

// What validate asks of the ranks together: nothing; each logical element on some rank; each on one rank.
enum class Cover { any, all, exact };
// Errors (thrown as Error with the rank and piece, or the box and its holders): pieces that are empty, outside the
// shape or the buffer, out of local order, sharing elements of the buffer or holding a logical element twice; for
// Cover::all and Cover::exact an element that no rank holds, for Cover::exact one that several hold. Any numbers are
// safe to pass.
void validate(const Layout& layout, Cover cover = Cover::any);

// One line a rank: "rank 0: rows [0, 4) cols [0, 8) at 0; ... of 32". Only tests call it.
std::string to_string(const Layout& layout);

}  // namespace tessera::layout
