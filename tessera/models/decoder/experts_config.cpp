#include "tessera/models/decoder/experts_config.h"

#include "tessera/models/config_fields.h"

namespace tessera::models {

std::int64_t num_experts(const Fields& fields, std::int64_t fallback) {
  const std::int64_t count = fields.size_or("num_experts", fields.size_or("num_local_experts", fallback));
  if (fields.size_or("num_local_experts", count) != count)
    fields.fail("num_local_experts", std::to_string(count) + ", as num_experts");
  return count;
}

void refuse_other_experts(const Fields& fields) {
  const auto require = [&](const char* name, int neutral, const char* reason) {
    if (fields.number_or(name, neutral, true) != neutral)
      fields.fail(name, std::to_string(neutral) + ": " + reason + " not supported");
  };
  for (const char* name : {"n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size"})
    require(name, 0, "shared experts are");
  for (const char* name : {"n_group", "topk_group"}) require(name, 1, "groups of experts are");
  require("routed_scaling_factor", 1, "a factor of routing weights is");
  require("first_k_dense_replace", 0, "dense first layers are");
  if (const nlohmann::json* score = fields.find("scoring_func"); score && *score != "softmax")
    fields.fail("scoring_func", "\"softmax\"");
}

void check_experts(const ExpertsConfig& experts, const Fields& fields) {
  if (experts.per_token > experts.count)
    fields.fail("num_experts_per_tok", "at most the number of experts, " + std::to_string(experts.count));
}

void check_groups(const ExpertsConfig& experts, const Fields& fields) {
  if (experts.count % experts.groups != 0 || (experts.groups > 1 && experts.count / experts.groups < 2))
    fields.fail("n_group", "a divisor of the number of experts, " + std::to_string(experts.count) +
                               ", with at least 2 experts in a group");
  if (experts.chosen_groups > experts.groups)
    fields.fail("topk_group", "at most n_group, " + std::to_string(experts.groups));
  const std::int64_t eligible = experts.count / experts.groups * experts.chosen_groups;
  if (experts.per_token > eligible)
    fields.fail("num_experts_per_tok", "at most the experts of topk_group groups, " + std::to_string(eligible));
}

}  // namespace tessera::models
