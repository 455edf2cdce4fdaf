// Tests reductions in host memory. device_kernels_test.cpp compares a device's reductions with them.
#include "tessera/comm/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

template <typename T>
class Reductions : public testing::Test {};
using FloatingTypes = testing::Types<quant::bfloat16, float, double>;
TYPED_TEST_SUITE(Reductions, FloatingTypes);

// The other tests of sums depend on this property.
TYPED_TEST(Reductions, AnotherOrderOfTheTestValuesGivesOtherBits) {
  const auto a = values_of<TypeParam>(0, 0, 1000), b = values_of<TypeParam>(1, 0, 1000),
             c = values_of<TypeParam>(2, 0, 1000);
  const std::vector<const void*> forward{a.data(), b.data(), c.data()}, rotated{b.data(), c.data(), a.data()};
  std::vector<TypeParam> one(1000), other(1000);
  reduce(one.data(), forward, TypeOf<TypeParam>::value, ReduceOp::sum, 1000);
  reduce(other.data(), rotated, TypeOf<TypeParam>::value, ReduceOp::sum, 1000);
  EXPECT_FALSE(same_bits(one, other));
}

TYPED_TEST(Reductions, CutsOfARangeGiveTheSameBits) {
  const auto a = values_of<TypeParam>(0, 0, 1000), b = values_of<TypeParam>(1, 0, 1000),
             c = values_of<TypeParam>(2, 0, 1000);
  const std::vector<const void*> parts{a.data(), b.data(), c.data()};
  std::vector<TypeParam> whole(1000), cut(1000);
  reduce(whole.data(), parts, TypeOf<TypeParam>::value, ReduceOp::sum, 1000);
  for (std::size_t begin = 0, size = 1; begin < 1000; begin += size, ++size) {
    size = std::min(size, 1000 - begin);
    const std::vector<const void*> shifted{a.data() + begin, b.data() + begin, c.data() + begin};
    reduce(cut.data() + begin, shifted, TypeOf<TypeParam>::value, ReduceOp::sum, static_cast<std::int64_t>(size));
  }
  EXPECT_TRUE(same_bits(cut, whole));
}

}  // namespace
}  // namespace tessera::comm
