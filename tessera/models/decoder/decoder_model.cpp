#include "tessera/models/decoder/decoder_model.h"

#include "tessera/base/error.h"
#include "tessera/models/decoder/decoder.h"
#include "tessera/models/decoder/decoder_names.h"
#include "tessera/models/decoder/decoder_parameters.h"

namespace tessera::models {

ModelSizes DecoderModelConfig::sizes() const {
  return {.vocab_size = config_.vocab_size,
          .hidden_size = config_.hidden_size,
          .num_layers = config_.num_layers,
          .max_position_embeddings = config_.max_position_embeddings,
          .has_tied_embeddings = config_.tie_word_embeddings,
          .num_experts = config_.experts ? config_.experts->count : 0,
          .experts_per_token = config_.experts ? config_.experts->per_token : 0,
          .activations_per_token = activations_per_token(config_),
          .has_router_bias = config_.experts && config_.experts->has_router_bias,
          .has_sigmoid_scores = config_.experts && config_.experts->score == ops::RouterScore::sigmoid};
}

std::vector<shard::ParameterSpec> DecoderModelConfig::parameters(const ParameterOptions& options) const {
  return decoder_parameters(config_, options);
}

std::vector<HfTensor> DecoderModelConfig::hf_tensors(ExpertTensors experts) const {
  return decoder_tensors(config_, expert_names(), experts);
}

std::int64_t DecoderModelConfig::num_layer_tensors(ExpertTensors experts) const {
  return models::num_layer_tensors(config_, expert_names(), experts);
}

std::vector<HfAlias> DecoderModelConfig::hf_aliases() const {
  return decoder_aliases(config_);
}

std::unique_ptr<Model> DecoderModelConfig::build(const nn::Context& context, const ModelOptions& options) const {
  return std::make_unique<Decoder>(config_, context, options);
}

const DecoderConfig& decoder_of(const ModelConfig& config) {
  const auto* decoder = dynamic_cast<const DecoderModelConfig*>(&config);
  if (decoder == nullptr)
    throw InputError("model_type {}: expected a dense decoder", config.to_json().value("model_type", ""));
  return decoder->decoder();
}

}  // namespace tessera::models
