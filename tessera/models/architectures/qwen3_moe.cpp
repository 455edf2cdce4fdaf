#include "tessera/models/architectures/qwen3_moe.h"

#include <algorithm>

#include "tessera/models/size_limits.h"

namespace tessera::models {
namespace {

std::vector<bool> sparse_layers(const Fields& fields, std::int64_t layers) {
  const std::int64_t step = fields.size_or("decoder_sparse_step", 1);
  std::vector<bool> sparse;
  for (std::int64_t layer = 0; layer < layers; ++layer) sparse.push_back((layer + 1) % step == 0);
  const nlohmann::json* dense = fields.find("mlp_only_layers");
  if (!dense) return sparse;
  const std::string expected = "a list of layers from 0 to " + std::to_string(layers - 1);
  if (!dense->is_array()) fields.fail("mlp_only_layers", expected);
  for (const nlohmann::json& layer : *dense) {
    if (!layer.is_number_integer() || layer < 0 || layer >= layers) fields.fail("mlp_only_layers", expected);
    sparse[layer.get<std::size_t>()] = false;
  }
  return sparse;
}

}  // namespace

nlohmann::json Qwen3MoeConfig::to_json() const {
  nlohmann::json json = decoder_json(decoder());
  const ExpertsConfig& experts = *decoder().experts;
  json["architectures"] = {kQwen3Moe.class_name};
  json["model_type"] = kQwen3Moe.model_type;
  json["attention_bias"] = false;
  json["use_sliding_window"] = false;
  json["num_experts"] = experts.count;
  json["num_experts_per_tok"] = experts.per_token;
  json["moe_intermediate_size"] = experts.width;
  json["norm_topk_prob"] = experts.normalizes_weights;
  json["router_aux_loss_coef"] = experts.aux_coefficient;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < decoder().num_layers; ++layer)
    if (!experts.is_sparse(layer)) json["mlp_only_layers"].push_back(layer);
  return json;
}

ModelConfigPtr parse_qwen3_moe(const Fields& fields) {
  fields.require_false("attention_bias", "biases are not supported");
  refuse_sliding_windows(fields);
  refuse_other_experts(fields);
  DecoderConfig config = parse_decoder(fields, {.max_position_embeddings = 32768, .num_kv_heads = 4});
  config.has_head_norms = true;
  config.experts = ExpertsConfig{.count = num_experts(fields, 128),
                                 .per_token = fields.size_or("num_experts_per_tok", 8),
                                 .width = fields.size_or("moe_intermediate_size", 768, {.most = kMaxWidth}),
                                 .normalizes_weights = fields.flag_or("norm_topk_prob", false),
                                 .aux_coefficient = fields.number_or("router_aux_loss_coef", 0.001, true),
                                 .sparse = sparse_layers(fields, config.num_layers)};
  if (std::ranges::none_of(config.experts->sparse, [](bool is_sparse) { return is_sparse; })) {
    const bool is_step = fields.size_or("decoder_sparse_step", 1) > config.num_layers;
    fields.fail(is_step ? "decoder_sparse_step" : "mlp_only_layers", "at least one layer with experts");
  }
  check_experts(*config.experts, fields);
  check_size(config, fields);
  return std::make_shared<Qwen3MoeConfig>(config);
}

}  // namespace tessera::models
