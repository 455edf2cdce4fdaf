// Random layouts for property tests: every kind that the library makes, nested and repeated, and layouts that no
// function of the library makes.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout::testing {

// Returns the number of random cases for a property: TESSERA_FUZZ_ITERATIONS, or `usual` if the variable is not set.
int iterations(int usual);

// Generates random small numbers. A seed gives the same numbers with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {  // both included
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

// A shape of at most 24 x 12, rarely empty.
Shape random_shape(Random& random);
// Named blocks that cover the rows, with units that divide them.
std::vector<Block> random_blocks(Random& random, std::int64_t rows);

// A layout with each element on one rank: sharded by rows, blocks or columns; nested, with or without padding; or with
// boxes at random places.
Layout random_exact(Random& random, Shape shape, int ranks);
// A layout with each element on at least one rank.
Layout random_cover(Random& random, Shape shape, int ranks);
// Any valid layout. Some elements may be on no rank.
Layout random_any(Random& random, Shape shape, int ranks);

// The storage layout and the compute layout of a possible run, over the same ranks.
struct Pair {
  Layout storage, compute;
};
Pair random_pair(Random& random);

// Returns the same layout with more pieces: splits pieces by rows, and every element keeps its offset.
Layout split_pieces(Random& random, const Layout& layout);
// Returns a layout with the same elements on each rank at other offsets: another order, gaps, larger strides.
Layout move_pieces(Random& random, const Layout& layout);

}  // namespace tessera::layout::testing
