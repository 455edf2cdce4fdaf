// Tests which tokens the ranks of an expert group hold. The exchanges are tested by whole runs.
#include "tessera/nn/experts/expert_group.h"

#include <gtest/gtest.h>

#include "tessera/nn/mesh_degrees.h"
#include "tessera/runtime/record/dry_run.h"

namespace tessera::nn {
namespace {

struct Share {
  std::int64_t own = 0, all = 0, blocks = 0;
  bool operator==(const Share&) const = default;
};

// A microbatch of a reader has 7 tokens.
Share share_of(const MeshDegrees& degrees, int rank) {
  runtime::DryRun program(rank_layout(degrees), rank, {}, {});
  Context context{.program = program, .sequence_parallel = degrees.tp > 1};
  const ExpertGroup group({.context = context, .id = {}}, 7);
  return {group.own(), group.tokens(), group.blocks()};
}

// The products of a group are one for each expert and block, and a block consists of the tokens of one tp group.
TEST(ExpertGroup, HasABlockForEachTpGroup) {
  EXPECT_EQ(share_of({.gtp = 2, .experts = ExpertDegrees{}}, 1), (Share{7, 7, 1}));
  EXPECT_EQ(share_of({.gtp = 4, .experts = ExpertDegrees{.ep = 4}}, 2), (Share{7, 28, 4}));
  EXPECT_EQ(share_of({.gtp = 4, .experts = ExpertDegrees{.ep = 2, .egtp = 2}}, 3), (Share{7, 14, 2}));
  EXPECT_EQ(share_of({.tp = 2, .experts = ExpertDegrees{.etp = 2}}, 0), (Share{3, 7, 1}));
  EXPECT_EQ(share_of({.tp = 2, .gtp = 2, .experts = ExpertDegrees{.etp = 2, .ep = 2}}, 1), (Share{4, 14, 2}));
  EXPECT_EQ(share_of({.tp = 2, .gtp = 2, .experts = ExpertDegrees{.ep = 4}}, 3), (Share{4, 14, 2}));
}

}  // namespace
}  // namespace tessera::nn
