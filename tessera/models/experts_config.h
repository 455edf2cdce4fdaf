// The experts of a decoder. In a sparse layer, a router chooses k of E experts for each token.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/ops/experts/router.h"

namespace tessera::models {

struct ExpertsConfig {
  std::int64_t count = 0;          // experts of a layer
  std::int64_t per_token = 0;      // experts that each token chooses
  std::int64_t width = 0;          // the intermediate size of an expert
  bool normalizes_weights = true;  // whether the weights of a token's experts are divided by their sum
  double aux_coefficient = 0;      // coefficient of the auxiliary loss, which balances the loads of the experts
  std::vector<bool> sparse = {};   // by layer: whether the layer has experts. The other layers are dense.
  ops::RouterScore score = ops::RouterScore::softmax;
  std::int64_t groups = 1, chosen_groups = 1;  // ops::RouterOptions
  double weight_scale = 1;                     // factor of routing weights
  bool has_router_bias = false;                // whether a bias of each expert takes part in the choice of experts
  std::int64_t shared_width = 0;  // intermediate size of the shared expert, which computes every token; 0: none

  bool is_sparse(std::int64_t layer) const { return sparse[static_cast<std::size_t>(layer)]; }
  bool operator==(const ExpertsConfig&) const = default;
};

class Fields;
// Returns the number of experts: "num_local_experts" or "num_experts". Mixtral uses the first name and Qwen3-MoE the
// second. Version 5 of transformers writes the first name for both models. Throws InputError if both fields are present
// and differ.
std::int64_t num_experts(const Fields& fields, std::int64_t fallback);
// Throws InputError if the file enables options of experts that are not supported, such as shared experts, groups of
// experts or another score than softmax.
void refuse_other_experts(const Fields& fields);
// Throws InputError if a token chooses more experts than a layer has.
void check_experts(const ExpertsConfig& experts, const Fields& fields);
// Throws InputError unless the groups have equal lengths of at least 2 and a token can choose its experts from the
// chosen groups. For the fields n_group and topk_group.
void check_groups(const ExpertsConfig& experts, const Fields& fields);

}  // namespace tessera::models
