// The names of a dense decoder's tensors in a Hugging Face folder, which are equal in all dense architectures.
#pragma once
#include <vector>

#include "tessera/models/decoder_config.h"
#include "tessera/models/hf_tensor.h"

namespace tessera::models {

// In the order in which the model uses the tensors. If the output layer is tied to the embedding, the list does not
// contain it, but a folder may.
std::vector<HfTensor> decoder_tensors(const DecoderConfig& config);
std::vector<HfAlias> decoder_aliases(const DecoderConfig& config);

}  // namespace tessera::models
