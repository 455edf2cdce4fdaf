// Chooses the blocks that recompute activations, so that the activations that a rank keeps for backward fit a budget.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/nn/recompute.h"
#include "tessera/predict/dry_step.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

// Returns the recompute policy of every block of a resolved run. For `automatic`, the activations of a microbatch fit
// the budget on every tp rank; dry steps give their bytes. Starting with the first block, as few blocks as possible
// change from none to selective. If that is not enough, blocks change from selective to full. This order is the
// cheapest, because selective recomputation takes less time per saved byte than full. Pure. The result is equal on
// every rank. Throws InputError if the budget is not a byte size. Throws InputError with both numbers if the budget is
// below the bytes that full recomputation of every block keeps.
std::vector<nn::Recompute> recompute_choice(const TrainConfig& config, const models::ModelConfig& model);

// Returns one tp rank of each kind. Ranks of one kind have parts of equal size of all weights and of the tokens, so
// they keep the same number of bytes.
std::vector<int> kinds_of_ranks(const predict::DryOptions& options);
// Returns the peak of the bytes kept for backward, as the maximum over `ranks`.
std::int64_t max_stashed(predict::DryOptions options, const std::vector<int>& ranks);

// Returns "none", or for example "3 selective, 5 full of 8 blocks".
std::string recompute_text(const std::vector<nn::Recompute>& blocks);

}  // namespace tessera::run
