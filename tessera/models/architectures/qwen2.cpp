#include "tessera/models/architectures/qwen2.h"

namespace tessera::models {

nlohmann::json Qwen2Config::to_json() const {
  nlohmann::json json = decoder_json(decoder());
  json["architectures"] = {kQwen2.class_name};
  json["model_type"] = kQwen2.model_type;
  json["use_sliding_window"] = false;
  return json;
}

ModelConfigPtr parse_qwen2(const Fields& fields) {
  refuse_sliding_windows(fields);
  DecoderConfig config =
      parse_decoder(fields, {.max_position_embeddings = 32768, .num_kv_heads = 32, .head_dim = std::nullopt});
  config.has_qkv_bias = true;
  return std::make_shared<Qwen2Config>(config);
}

}  // namespace tessera::models
