#include "tessera/models/architectures/mixtral.h"

namespace tessera::models {

nlohmann::json MixtralConfig::to_json() const {
  nlohmann::json json = decoder_json(decoder());
  const ExpertsConfig& experts = *decoder().experts;
  json["architectures"] = {kMixtral.class_name};
  json["model_type"] = kMixtral.model_type;
  json["attention_bias"] = false;
  json["sliding_window"] = nullptr;
  json["num_local_experts"] = experts.count;
  json["num_experts_per_tok"] = experts.per_token;
  json["router_aux_loss_coef"] = experts.aux_coefficient;
  json["router_jitter_noise"] = 0.0;
  return json;
}

ExpertNames MixtralConfig::expert_names() const {
  return {.module = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
}

ModelConfigPtr parse_mixtral(const Fields& fields) {
  fields.require_false("attention_bias", "biases are not supported");
  if (fields.find("sliding_window")) fields.fail("sliding_window", "null: sliding windows are not supported");
  if (fields.number_or("router_jitter_noise", 0, true) != 0)
    fields.fail("router_jitter_noise", "0: noise in the router is not supported");
  refuse_other_experts(fields);
  DecoderConfig config = parse_decoder(
      fields, {.max_position_embeddings = 131072, .num_kv_heads = 8, .rope_theta = 1e6, .rms_norm_eps = 1e-5});
  config.experts = ExpertsConfig{.count = num_experts(fields, 8),
                                 .per_token = fields.size_or("num_experts_per_tok", 2),
                                 .width = config.intermediate_size,
                                 .aux_coefficient = fields.number_or("router_aux_loss_coef", 0.001, true)};
  config.experts->sparse.assign(static_cast<std::size_t>(config.num_layers), true);
  check_experts(*config.experts, fields);
  check_size(config, fields);
  return std::make_shared<MixtralConfig>(config);
}

}  // namespace tessera::models
