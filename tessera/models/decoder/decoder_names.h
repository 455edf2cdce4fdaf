// The names of a decoder's tensors in a Hugging Face folder. The names are equal in all architectures, except the names
// of experts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/hf_tensor.h"

namespace tessera::models {

// The names of experts in a layer of the model. For example, the gate matrix of expert 3 is
// "block_sparse_moe.experts.3.w1.weight".
struct ExpertNames {
  std::string module = "mlp";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

// Returns the tensors in the order in which the model uses them. If the output layer is tied to the embedding, the list
// does not contain the output layer, but decoder_aliases() does.
std::vector<HfTensor> decoder_tensors(const DecoderConfig& config, const ExpertNames& names, ExpertTensors experts);
// Returns how many of these tensors belong to layers. Makes the list of at most two layers.
std::int64_t num_layer_tensors(const DecoderConfig& config, const ExpertNames& names, ExpertTensors experts);
std::vector<HfAlias> decoder_aliases(const DecoderConfig& config);

}  // namespace tessera::models
