// A decoder as a ModelConfig. All architectures are decoders and derive from this class.
#pragma once
#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/decoder/decoder_names.h"
#include "tessera/models/model_config.h"

namespace tessera::models {

class DecoderModelConfig : public ModelConfig {
 public:
  explicit DecoderModelConfig(const DecoderConfig& config) : config_(config) {}
  const DecoderConfig& decoder() const { return config_; }

  ModelSizes sizes() const override;
  std::vector<shard::ParameterSpec> parameters(const ParameterOptions& options) const override;
  std::vector<HfTensor> hf_tensors(ExpertTensors experts) const override;
  std::int64_t num_layer_tensors(ExpertTensors experts) const override;
  std::vector<HfAlias> hf_aliases() const override;
  std::unique_ptr<Model> build(const nn::Context& context, const ModelOptions& options) const override;

 protected:
  // Returns the names of experts in Hugging Face's files. Called only for a model with experts.
  virtual ExpertNames expert_names() const { return {}; }

 private:
  DecoderConfig config_;
};

// Returns the decoder configuration, for code that supports only decoders. Throws InputError for another model. Only
// tests call this function.
const DecoderConfig& decoder_of(const ModelConfig& config);

}  // namespace tessera::models
