// Chooses the blocks that recompute activations, so that the activations that a rank keeps fit a budget.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/nn/recompute.h"
#include "tessera/predict/dry_step.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

// Returns the recompute policy of every block of a resolved run. For `automatic`, returns the cheapest policies with
// which the activations of a microbatch fit the budget on every tp rank; dry steps give the bytes. From the first block
// on, blocks change from none to selective, and then from selective to full if that is not enough: per saved byte,
// selective recomputation takes less time than full. Pure; the result is the same on every rank. Throws InputError if
// the budget is not a byte size, or is below the bytes that full recomputation of every block keeps; the message gives
// both numbers.
std::vector<nn::Recompute> recompute_choice(const TrainConfig& config, const models::ModelConfig& model);

// A kind of ranks. Ranks of one kind have equally large parts of all weights and of the tokens, so they keep equally
// many bytes.
struct RankKind {
  int rank = 0;                     // one of the kind
  int group_ranks = 1;              // ranks of its tp group
  std::vector<std::int64_t> sizes;  // of its parts
};
// Returns the kinds of the ranks of a mesh.
std::vector<RankKind> rank_kinds(const predict::DryOptions& options);
// Returns one rank of each kind.
std::vector<int> kinds_of_ranks(const predict::DryOptions& options);
// Returns the kinds without those whose parts are all at most as large as those of another kind with as many ranks in
// the tp group.
std::vector<RankKind> busiest(const std::vector<RankKind>& kinds);
// Returns the largest number of bytes that any rank of `ranks` keeps for backward at a time.
std::int64_t max_stashed(predict::DryOptions options, const std::vector<int>& ranks);

// Returns "none", or for example "3 selective, 5 full of 8 blocks".
std::string recompute_text(const std::vector<nn::Recompute>& blocks);

}  // namespace tessera::run
