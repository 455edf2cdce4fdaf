#include "tessera/models/architectures/qwen3.h"

namespace tessera::models {

nlohmann::json Qwen3Config::to_json() const {
  nlohmann::json json = decoder_json(decoder());
  json["architectures"] = {kQwen3.class_name};
  json["model_type"] = kQwen3.model_type;
  json["attention_bias"] = false;
  json["use_sliding_window"] = false;
  return json;
}

ModelConfigPtr parse_qwen3(const Fields& fields) {
  fields.require_false("attention_bias", "biases are not supported");
  refuse_sliding_windows(fields);
  DecoderConfig config = parse_decoder(fields, {.max_position_embeddings = 32768, .num_kv_heads = 32, .head_dim = 128});
  config.has_head_norms = true;
  return std::make_shared<Qwen3Config>(config);
}

}  // namespace tessera::models
