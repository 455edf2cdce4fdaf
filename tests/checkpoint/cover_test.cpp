#include "tessera/checkpoint/cover.h"

#include <limits>

#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using layout::Box;

// The reference implementation, which counts how often each element is covered.
bool covered_once(layout::Shape shape, const std::vector<Box>& boxes) {
  std::vector<int> count(static_cast<std::size_t>(shape.elements()));
  for (const Box& box : boxes)
    for (std::int64_t r = box.row; r < box.row + box.rows; ++r)
      for (std::int64_t c = box.col; c < box.col + box.cols; ++c) ++count[static_cast<std::size_t>(r * shape.cols + c)];
  return std::all_of(count.begin(), count.end(), [](int n) { return n == 1; });
}

TEST(CheckpointCover, AgreesWithCountedElements) {
  Random random(3);
  int exact = 0, faulty = 0;
  for (int round = 0; round < 4000; ++round) {
    const layout::Shape shape{pick(random, 0, 12), pick(random, 1, 12)};
    std::vector<Box> boxes = random_tiling(random, shape, static_cast<int>(pick(random, 0, 12)));
    std::shuffle(boxes.begin(), boxes.end(), random);
    if (!boxes.empty() && pick(random, 0, 2) > 0) {  // damages the boxes at random
      Box& box = boxes.front();
      switch (pick(random, 0, 4)) {
        case 0:
          boxes.pop_back();
          break;
        case 1:
          boxes.push_back(boxes.back());
          break;
        case 2:
          box.row = pick(random, 0, shape.rows - box.rows);
          break;
        case 3:
          box.col = pick(random, 0, shape.cols - box.cols);
          break;
        default:
          box.rows = pick(random, 1, shape.rows - box.row);
          break;
      }
    }
    const bool expected = covered_once(shape, boxes);
    const auto fault = cover_fault(shape, boxes);
    ASSERT_EQ(!fault, expected) << (fault ? *fault : "no fault");
    ++(expected ? exact : faulty);
  }
  EXPECT_GT(exact, 500);
  EXPECT_GT(faulty, 500);
}

TEST(CheckpointCover, BoxesFromADamagedFileAreFaults) {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  const layout::Shape shape{4, 4};
  for (const Box& box : {Box{0, 5, 0, 4}, Box{1, 4, 0, 4}, Box{-1, 4, 0, 4}, Box{0, 4, 0, 0}, Box{0, 0, 0, 4},
                         Box{largest, largest, 0, 4}, Box{0, largest, largest, largest}, Box{0, -4, 0, -4}})
    EXPECT_TRUE(cover_fault(shape, std::vector{box}));
  EXPECT_TRUE(cover_fault(shape, {}));
  EXPECT_FALSE(cover_fault({0, 4}, {}));
  EXPECT_FALSE(cover_fault(shape, std::vector{Box{0, 4, 0, 4}}));
}

}  // namespace
}  // namespace tessera::checkpoint
