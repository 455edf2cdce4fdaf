#include "random_layouts.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include "tessera/layout/dense.h"

namespace tessera::layout::testing {
namespace {

// Divides `box` into boxes at random places and appends them to `boxes`.
void cut_anywhere(Random& random, const Box& box, std::vector<Box>& boxes) {
  if (box.empty()) return;
  if (box.elements() == 1 || random.one_in(4)) {
    boxes.push_back(box);
    return;
  }
  Box first = box, second = box;
  if (box.cols == 1 || (box.rows > 1 && random.one_in(2))) {
    first.rows = random.between(1, box.rows - 1);
    second.row += first.rows;
    second.rows -= first.rows;
  } else {
    first.cols = random.between(1, box.cols - 1);
    second.col += first.cols;
    second.cols -= first.cols;
  }
  cut_anywhere(random, first, boxes);
  cut_anywhere(random, second, boxes);
}

void put(Random& random, LocalLayout& local, const Box& box, bool loosely) {
  const std::int64_t gap = loosely && random.one_in(3) ? random.between(1, 3) : 0;
  const std::int64_t stride = box.cols + (loosely && random.one_in(3) ? random.between(1, 3) : 0);
  local.pieces.push_back({.box = box, .offset = local.size + gap, .stride = stride});
  local.size += gap + box.rows * stride;
}

Layout boxes_anywhere(Random& random, Shape shape, int ranks) {
  std::vector<Box> boxes;
  cut_anywhere(random, {.row = 0, .rows = shape.rows, .col = 0, .cols = shape.cols}, boxes);
  random.shuffle(boxes);
  Layout layout{.shape = shape, .ranks = std::vector<LocalLayout>(static_cast<std::size_t>(ranks))};
  for (const Box& box : boxes) put(random, layout.ranks[random.small(0, ranks - 1)], box, true);
  return layout;
}

// Returns a random factor of n.
int random_factor(Random& random, int n) {
  std::vector<int> factors;
  for (int f = 1; f <= n; ++f) {
    if (n % f == 0) factors.push_back(f);
  }
  return factors[random.small(0, static_cast<int>(factors.size()) - 1)];
}

// Returns a layout in which random ranges of columns belong to random ranks, in any order. The ranges of a rank are
// side by side.
Layout cols_anywhere(Random& random, Shape shape, int ranks) {
  std::vector<std::vector<Range>> ranges(static_cast<std::size_t>(ranks));
  for (std::int64_t col = 0; col < shape.cols;) {
    const Range cols{col, std::min(shape.cols, col + random.between(1, 4))};
    ranges[static_cast<std::size_t>(random.small(0, ranks - 1))].push_back(cols);
    col = cols.end;
  }
  for (auto& own : ranges) random.shuffle(own);
  return cols_by_rank(shape, ranges);
}

Layout simple_cut(Random& random, Shape shape, int ranks) {
  switch (random.small(0, 3)) {
    case 3:
      return cols_anywhere(random, shape, ranks);
    case 0:
      return cut_rows(shape, {{.name = "all", .rows = shape.rows, .unit = 1}}, ranks);
    case 1:
      return cut_rows(shape, random_blocks(random, shape.rows), ranks);
    default:
      return cut_cols(shape, ranks, shape.cols % 2 == 0 && random.one_in(2) ? 2 : 1);
  }
}

// Returns a layout in which random ranges of rows belong to random ranks, in any order. Seldom, all rows belong to one
// rank.
Layout rows_anywhere(Random& random, Shape shape, int ranks, bool overlap) {
  std::vector<std::vector<Range>> ranges(static_cast<std::size_t>(ranks));
  const auto give = [&](Range rows) {
    auto& own = ranges[random.small(0, ranks - 1)];
    const bool free =
        std::all_of(own.begin(), own.end(), [&](const Range& r) { return r.end <= rows.begin || rows.end <= r.begin; });
    if (free) own.push_back(rows);
    return free;
  };
  for (std::int64_t row = 0; row < shape.rows;) {
    const Range rows{row, std::min(shape.rows, row + random.between(1, 6))};
    while (!give(rows)) continue;
    if (overlap && random.one_in(2)) give({rows.begin, random.between(rows.begin, shape.rows)});
    row = rows.end;
  }
  for (auto& own : ranges) random.shuffle(own);
  return rows_by_rank(shape, ranges);
}

}  // namespace

int iterations(int usual) {
  const char* set = std::getenv("TESSERA_FUZZ_ITERATIONS");
  return set != nullptr ? std::stoi(set) : usual;
}

Shape random_shape(Random& random) {
  if (random.one_in(40)) return {.rows = 0, .cols = random.between(0, 4)};
  return {.rows = random.between(1, 24), .cols = random.between(1, 12)};
}

std::vector<Block> random_blocks(Random& random, std::int64_t rows) {
  std::vector<Block> blocks;
  for (std::int64_t row = 0; row < rows;) {
    Block block{.name = "block" + std::to_string(blocks.size()), .rows = random.between(1, rows - row)};
    for (std::int64_t unit = 1; unit <= block.rows; ++unit) {
      if (block.rows % unit == 0 && random.one_in(2)) block.unit = unit;
    }
    row += block.rows;
    blocks.push_back(block);
  }
  return blocks;
}

Layout random_exact(Random& random, Shape shape, int ranks) {
  switch (random.small(0, 3)) {
    case 0:
      return simple_cut(random, shape, ranks);
    case 1:
      return rows_anywhere(random, shape, ranks, false);
    case 2:
      return boxes_anywhere(random, shape, ranks);
    default: {
      const int outer = random_factor(random, ranks);
      return cut_local_rows(simple_cut(random, shape, outer), ranks / outer, random.between(1, 3), random.one_in(2));
    }
  }
}

Layout random_cover(Random& random, Shape shape, int ranks) {
  switch (random.small(0, 3)) {
    case 0:
      return replicated(shape, ranks);
    case 1: {
      const int group = random_factor(random, ranks);
      return repeat(random_exact(random, shape, group), ranks / group);
    }
    case 2:
      return rows_anywhere(random, shape, ranks, true);
    default: {
      Layout layout = random_exact(random, shape, ranks);
      const Layout more = random_exact(random, shape, ranks);
      // Adds pieces of another layout that do not overlap the pieces of this one.
      for (int rank = 0; rank < ranks; ++rank) {
        for (const Piece& piece : more.ranks[rank].pieces) {
          const auto& own = layout.ranks[rank].pieces;
          const bool free = std::none_of(own.begin(), own.end(),
                                         [&](const Piece& p) { return intersect(p.box, piece.box).has_value(); });
          if (free && random.one_in(2)) put(random, layout.ranks[rank], piece.box, true);
        }
      }
      return layout;
    }
  }
}

Layout random_any(Random& random, Shape shape, int ranks) {
  Layout layout = random.one_in(2) ? random_exact(random, shape, ranks) : random_cover(random, shape, ranks);
  for (LocalLayout& local : layout.ranks) {
    if (random.one_in(2)) std::erase_if(local.pieces, [&](const Piece&) { return random.one_in(3); });
  }
  return layout;
}

Pair random_pair(Random& random) {
  const Shape shape = random_shape(random);
  const int outer = random.small(1, 4), inner = random.small(1, 4), ranks = outer * inner;
  switch (random.small(0, 5)) {
    case 0: {  // FSDP: shards and whole tensors
      const Layout whole = replicated(shape, ranks);
      const Layout shards = cut_local_rows(replicated(shape, 1), ranks, random.between(1, 2), random.one_in(2));
      return {random.one_in(4) ? move_pieces(random, shards) : shards, whole};
    }
    case 1: {  // tp x gtp: all ranks, or one gtp group
      const Layout compute = simple_cut(random, shape, outer);
      const Layout storage = cut_local_rows(compute, inner, random.between(1, 2), random.one_in(3));
      if (random.one_in(3)) return {storage, repeat(compute, inner)};
      std::vector<int> group;
      const int slot = random.small(0, outer - 1);
      for (int i = 0; i < inner; ++i) group.push_back(slot + outer * i);
      return {select(storage, group), select(repeat(compute, inner), group)};
    }
    case 2: {  // data parallel, with or without gaps in the buffers
      const Layout whole = replicated(shape, ranks), gaps = repeat(move_pieces(random, replicated(shape, 1)), ranks);
      return {random.one_in(3) ? gaps : whole, random.one_in(3) ? gaps : whole};
    }
    case 3: {  // rows to columns; every rank has one row and sends one run to every other rank
      const Shape square{.rows = ranks, .cols = shape.cols};
      return {cut_rows(square, {{.name = "all", .rows = ranks}}, ranks), cut_cols(square, ranks)};
    }
    case 4: {  // the same elements on each rank, at the same or other offsets
      const Layout storage = random_exact(random, shape, ranks);
      return {storage, random.one_in(2) ? storage : move_pieces(random, storage)};
    }
    default:
      return {random_exact(random, shape, ranks), random_any(random, shape, ranks)};
  }
}

Layout split_pieces(Random& random, const Layout& layout) {
  Layout split = layout;
  for (LocalLayout& local : split.ranks) {
    std::vector<Piece> pieces;
    for (Piece piece : local.pieces) {
      while (piece.box.rows > 1 && random.one_in(2)) {
        Piece top = piece;
        top.box.rows = random.between(1, piece.box.rows - 1);
        pieces.push_back(top);
        piece.box.row += top.box.rows;
        piece.box.rows -= top.box.rows;
        piece.offset += top.box.rows * piece.stride;
      }
      pieces.push_back(piece);
    }
    // Pieces whose rows interleave must stay in local order.
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    local.pieces = pieces;
  }
  return split;
}

Layout move_pieces(Random& random, const Layout& layout) {
  Layout moved{.shape = layout.shape, .state = layout.state};
  for (const LocalLayout& local : layout.ranks) {
    std::vector<Piece> pieces = local.pieces;
    random.shuffle(pieces);
    LocalLayout target;
    for (const Piece& piece : pieces) put(random, target, piece.box, true);
    target.size += random.between(0, 2);
    moved.ranks.push_back(target);
  }
  return moved;
}

}  // namespace tessera::layout::testing
