// Which blocks compute activations again, so that what a rank keeps fits a budget.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/nn/recompute.h"
#include "tessera/predict/dry_step.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

// The policy of every block of a resolved run. With automatic: the cheapest policies with which the activations of a
// microbatch fit the budget on every tp rank, bytes being those of dry steps. Blocks go from none to selective,
// and where that is not enough from selective to full, from the first one on: selective computation costs less time a
// byte than full. Pure; the same on every rank. Errors (InputError): the budget is no byte size, or below what full
// recomputation of every block keeps (the message says both).
std::vector<nn::Recompute> recompute_choice(const TrainConfig& config, const models::ModelConfig& model);

// One tp rank of each kind: ranks whose parts of all weights and of the tokens are as large keep as much.
std::vector<int> kinds_of_ranks(const predict::DryOptions& options, std::int64_t tp);
// The greatest sum of bytes that one of `ranks` keeps for backward at a time.
std::int64_t most_stashed(predict::DryOptions options, const std::vector<int>& ranks);

// "none", or "3 selective, 5 full of 8 blocks".
std::string recompute_text(const std::vector<nn::Recompute>& blocks);

}  // namespace tessera::run
