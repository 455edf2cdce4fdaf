// Tests the parts of a stack of matrices that replicas update.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/shard/formats/format_policy.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::shard {
namespace {

// The last unit of each matrix is shorter than the others, so a later replica may update more than the first one.
TEST(StackLayouts, ExtremeReplicasHaveTheLargestAndTheSmallestPart) {
  int first_is_not_largest = 0;
  for (const std::int64_t rows : {17, 20, 32, 50})
    for (const int parts : {1, 2, 3}) {
      ParameterSpec spec{.name = "experts", .dims = {7, rows, 34}, .compute = layout::replicated({7 * rows, 34}, 1)};
      set_encoding(spec, {.format = quant::Format::nvfp4}, {.model = quant::DType::bf16});
      const ParameterLayouts layouts = layouts_of(spec, {.parts = parts});
      for (const layout::LocalLayout& shard : layouts.stored(0, parts).ranks)
        for (const int replicas : {2, 3, 4, 9}) {
          std::vector<std::int64_t> all, extreme;
          for (int replica = 0; replica < replicas; ++replica)
            all.push_back(layouts.updated_elements(shard, replicas, replica));
          for (const int replica : layouts.extreme_replicas(replicas))
            extreme.push_back(layouts.updated_elements(shard, replicas, replica));
          EXPECT_EQ(std::ranges::max(all), std::ranges::max(extreme));
          EXPECT_EQ(std::ranges::min(all), std::ranges::min(extreme));
          first_is_not_largest += all.front() < std::ranges::max(all) ? 1 : 0;
          std::vector<std::int64_t> sizes;
          for (const layout::LocalLayout& part : layouts.updated(shard, replicas)) sizes.push_back(part.size);
          EXPECT_EQ(sizes, all);
        }
    }
  EXPECT_GT(first_is_not_largest, 0);
}

}  // namespace
}  // namespace tessera::shard
