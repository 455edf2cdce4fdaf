// Chooses the blocks that recompute activations, so that the activations that a rank keeps for backward fit a budget.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/nn/recompute.h"
#include "tessera/predict/dry_step.h"

namespace tessera::predict {

// Returns the recompute policy of every block, so that the activations of a microbatch fit `budget` bytes on every tp
// rank. Dry steps give their bytes. Starting with the first block, as few blocks as possible change from none to
// selective. If that is not enough, blocks change from selective to full. This order is the cheapest, because selective
// recomputation takes less time per saved byte than full. Pure. The result is equal on every rank. `blocks` is the
// model's number of blocks. Throws InputError with both numbers if the budget is below the bytes that full
// recomputation of every block keeps.
std::vector<nn::Recompute> recompute_within(DryOptions options, std::int64_t blocks, std::int64_t budget);

// A kind of ranks. Ranks of one kind have equally large parts of each weight and equally many tokens, so they keep
// equally many bytes.
struct RankKind {
  int rank = 0;                     // one rank of the kind
  int group_ranks = 1;              // number of ranks in the rank's tp group
  std::vector<std::int64_t> sizes;  // sizes of the rank's parts
};
// Returns the kinds of the ranks of a mesh.
std::vector<RankKind> rank_kinds(const DryOptions& options);
// Returns one rank of each kind.
std::vector<int> kinds_of_ranks(const DryOptions& options);
// Removes the kinds that need no plan of their own. A kind is removed if another kind has as many ranks in its tp group
// and every part of the other kind is at least as large.
std::vector<RankKind> busiest(const std::vector<RankKind>& kinds);
// Returns the peak of the bytes kept for backward, as the maximum over `ranks`.
std::int64_t max_stashed(DryOptions options, const std::vector<int>& ranks);

// Returns "none", or for example "3 selective, 5 full of 8 blocks".
std::string recompute_text(const std::vector<nn::Recompute>& blocks);

}  // namespace tessera::predict
