// Layouts for property tests: every kind the library makes, nested and repeated, and ones no function would make.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout::testing {

// How many random cases a property is tried on: TESSERA_FUZZ_ITERATIONS, or `usual` where it is not set.
int iterations(int usual);

// Small numbers from one seed, the same with every standard library.
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

// At most 24 x 12, seldom empty.
Shape random_shape(Random& random);
// Named blocks that tile the rows, with units that divide them.
std::vector<Block> random_blocks(Random& random, std::int64_t rows);

// Each element on one rank. The kinds: cuts by rows, blocks, columns; nested cuts, padded or not; boxes anywhere.
Layout random_exact(Random& random, Shape shape, int ranks);
// Each element on one rank or on several.
Layout random_cover(Random& random, Shape shape, int ranks);
// Anything valid: elements may be held by no rank.
Layout random_any(Random& random, Shape shape, int ranks);

// Two layouts over the same ranks that a run would use: storage and compute.
struct Pair {
  Layout storage, compute;
};
Pair random_pair(Random& random);

// The same layout in more pieces: rows of pieces split apart, every element at its old place.
Layout split_pieces(Random& random, const Layout& layout);
// The same holdings, put elsewhere in the local buffers: other order, gaps, wider strides.
Layout move_pieces(Random& random, const Layout& layout);

}  // namespace tessera::layout::testing
