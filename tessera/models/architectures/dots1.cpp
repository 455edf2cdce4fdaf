#include "tessera/models/architectures/dots1.h"

#include <algorithm>

#include "tessera/models/size_limits.h"

namespace tessera::models {
namespace {

// Throws InputError if a layer has a sliding window. Layers from max_window_layers on have sliding windows, unless
// sliding_window is null or layer_types lists the kinds of the layers.
void refuse_windows(const Fields& fields) {
  refuse_sliding_windows(fields);
  if (fields.find("layer_types") || !fields.find("sliding_window")) return;
  if (fields.size_or("max_window_layers", 62) < fields.size("num_hidden_layers"))
    fields.fail("sliding_window", "null: sliding windows are not supported");
}

void refuse_other_routing(const Fields& fields) {
  const auto require = [&](const char* name, const nlohmann::json& only, const char* expected) {
    if (const nlohmann::json* value = fields.find(name); value && *value != only) fields.fail(name, expected);
  };
  // Published configurations of dots1 use the name "noaux_tc" for sigmoid scores with a bias.
  if (const nlohmann::json* score = fields.find("scoring_func"); score && *score != "sigmoid" && *score != "noaux_tc")
    fields.fail("scoring_func", "\"sigmoid\" or \"noaux_tc\"");
  require("topk_method", "noaux_tc", "\"noaux_tc\"");
  require("moe_layer_freq", 1, "1: every layer after the dense ones has experts");
  for (const char* name : {"router_aux_loss_coef", "aux_loss_alpha"})
    if (fields.number_or(name, 0, true) != 0) fields.fail(name, "0: dots1 has no auxiliary loss");
  for (const char* name : {"q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"})
    if (fields.find(name)) fields.fail(name, "the field to be absent: multi-head latent attention is not supported");
}

std::int64_t routed_experts(const Fields& fields) {
  if (!fields.find("n_routed_experts") && fields.find("num_local_experts")) return fields.size("num_local_experts");
  const std::int64_t count = fields.size("n_routed_experts");
  if (fields.size_or("num_local_experts", count) != count)
    fields.fail("num_local_experts", std::to_string(count) + ", as n_routed_experts");
  return count;
}

std::vector<bool> layers_after_dense(const Fields& fields, std::int64_t layers) {
  const std::int64_t dense = fields.size_or("first_k_dense_replace", 0, {.least = 0});
  if (dense >= layers)
    fields.fail("first_k_dense_replace",
                "less than num_hidden_layers " + std::to_string(layers) + ": at least one layer must have experts");
  std::vector<bool> sparse(static_cast<std::size_t>(layers), true);
  std::fill_n(sparse.begin(), dense, false);
  return sparse;
}

}  // namespace

nlohmann::json Dots1Config::to_json() const {
  nlohmann::json json = decoder_json(decoder());
  const ExpertsConfig& experts = *decoder().experts;
  json["architectures"] = {kDots1.class_name};
  json["model_type"] = kDots1.model_type;
  json["attention_bias"] = false;
  json["sliding_window"] = nullptr;
  json["scoring_func"] = "noaux_tc";
  json["n_routed_experts"] = experts.count;
  json["num_experts_per_tok"] = experts.per_token;
  json["moe_intermediate_size"] = experts.width;
  json["n_shared_experts"] = experts.shared_width / experts.width;
  json["n_group"] = experts.groups;
  json["topk_group"] = experts.chosen_groups;
  json["norm_topk_prob"] = experts.normalizes_weights;
  json["routed_scaling_factor"] = experts.weight_scale;
  json["first_k_dense_replace"] = std::ranges::count(experts.sparse, false);
  return json;
}

ModelConfigPtr parse_dots1(const Fields& fields) {
  fields.require_false("attention_bias", "biases are not supported");
  refuse_windows(fields);
  refuse_other_routing(fields);
  DecoderConfig config = parse_decoder(fields, {.num_kv_heads = 32});
  config.has_head_norms = true;
  config.experts = ExpertsConfig{.count = routed_experts(fields),
                                 .per_token = fields.size("num_experts_per_tok"),
                                 .width = fields.size_or("moe_intermediate_size", 1408, {.most = kMaxWidth}),
                                 .normalizes_weights = fields.flag_or("norm_topk_prob", false),
                                 .sparse = layers_after_dense(fields, config.num_layers),
                                 .score = ops::RouterScore::sigmoid,
                                 .groups = fields.size_or("n_group", 1),
                                 .chosen_groups = fields.size_or("topk_group", 1),
                                 .weight_scale = fields.number_or("routed_scaling_factor", 1),
                                 .has_router_bias = true};
  const std::int64_t most_shared = kMaxWidth / config.experts->width;
  config.experts->shared_width =
      fields.size_or("n_shared_experts", 0, {.least = 0, .most = most_shared}) * config.experts->width;
  check_experts(*config.experts, fields);
  check_groups(*config.experts, fields);
  check_size(config, fields);
  return std::make_shared<Dots1Config>(config);
}

}  // namespace tessera::models
