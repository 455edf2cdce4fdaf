// Random layouts for property tests: all kinds of layouts that the library makes, and other valid layouts.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout::testing {

// Returns the number of random cases of a property test: the environment variable TESSERA_FUZZ_ITERATIONS, or `usual`
// if it is not set.
int iterations(int usual);

// Generates random small numbers. A seed gives the same numbers with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {  // `low` and `high` are included
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  int small(int low, int high) { return static_cast<int>(between(low, high)); }
  bool one_in(int n) { return between(1, n) == 1; }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(i) - 1))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

// Returns a shape of at most 24 x 12, which is rarely empty.
Shape random_shape(Random& random);
// Returns named blocks that together cover the rows. The unit of each block divides the size of the block.
std::vector<Block> random_blocks(Random& random, std::int64_t rows);

// Returns a layout with each element on exactly one rank. The layout is sharded by rows, blocks or columns, sharded
// twice, with or without padding, or consists of random boxes.
Layout random_exact(Random& random, Shape shape, int ranks);
// Returns a layout with each element on at least one rank.
Layout random_cover(Random& random, Shape shape, int ranks);
// Returns any valid layout, in which elements may be missing.
Layout random_any(Random& random, Shape shape, int ranks);

// The storage layout and the compute layout of a possible run, over the same ranks.
struct Pair {
  Layout storage, compute;
};
Pair random_pair(Random& random);

// Returns an equal layout with more pieces. Splits pieces by rows; every element keeps its offset.
Layout split_pieces(Random& random, const Layout& layout);
// Returns a layout with the same elements on each rank, but with another order, gaps and larger strides.
Layout move_pieces(Random& random, const Layout& layout);

}  // namespace tessera::layout::testing
