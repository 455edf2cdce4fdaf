#include "tessera/models/architectures/llama.h"

namespace tessera::models {

nlohmann::json LlamaConfig::to_json() const {
  nlohmann::json json = decoder_json(decoder());
  json["architectures"] = {kLlama.class_name};
  json["model_type"] = kLlama.model_type;
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  return json;
}

ModelConfigPtr parse_llama(const Fields& fields) {
  fields.require_false("attention_bias", "biases are not supported");
  fields.require_false("mlp_bias", "biases are not supported");
  return std::make_shared<LlamaConfig>(parse_decoder(fields, {}));
}

}  // namespace tessera::models
