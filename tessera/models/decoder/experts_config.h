// The experts of a decoder. In a sparse layer, a router chooses k of E experts for each token.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/ops/router/router.h"

namespace tessera::models {

struct ExpertsConfig {
  std::int64_t count = 0;          // experts of a layer
  std::int64_t per_token = 0;      // experts that each token chooses
  std::int64_t width = 0;          // the intermediate size of an expert
  bool normalizes_weights = true;  // whether the weights of a token's experts are divided by their sum
  double aux_coefficient = 0;      // coefficient of the auxiliary loss, which balances the loads of the experts
  std::vector<bool> sparse = {};   // by layer: whether the layer has experts. The other layers are dense.
  ops::RouterScore score = ops::RouterScore::softmax;
  std::int64_t groups = 1,
               chosen_groups = 1;  // groups of experts, and groups that a token chooses (ops::RouterOptions)
  double weight_scale = 1;         // factor of routing weights
  bool has_router_bias = false;    // whether the router adds a bias to the scores when it chooses experts
  // Intermediate size of the shared expert, which processes every token. 0: no shared expert.
  std::int64_t shared_width = 0;

  bool is_sparse(std::int64_t layer) const { return sparse[static_cast<std::size_t>(layer)]; }
  bool operator==(const ExpertsConfig&) const = default;
};

class Fields;
// Returns the number of experts: "num_local_experts" or "num_experts". Mixtral uses the first name and Qwen3-MoE the
// second. Version 5 of transformers writes the first name for both models. Throws InputError if both fields are present
// and differ.
std::int64_t num_experts(const Fields& fields, std::int64_t fallback);
// Throws InputError if the file enables options of experts that Mixtral and Qwen3-MoE do not have: shared experts,
// groups of experts, or another score than softmax.
void refuse_other_experts(const Fields& fields);
// Throws InputError if a token chooses more experts than a layer has.
void check_experts(const ExpertsConfig& experts, const Fields& fields);
// Checks the fields n_group and topk_group. Throws InputError unless all groups have the same size of at least 2, and
// the chosen groups contain at least as many experts as a token chooses.
void check_groups(const ExpertsConfig& experts, const Fields& fields);

}  // namespace tessera::models
