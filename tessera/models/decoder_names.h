// The names of a dense decoder's tensors in a Hugging Face folder, as all architectures of this kind have them.
#pragma once
#include <vector>

#include "tessera/models/decoder_config.h"
#include "tessera/models/hf_tensor.h"

namespace tessera::models {

// In the order in which the model uses them. The output layer is absent when it is tied to the embedding; a folder may
// hold it all the same.
std::vector<HfTensor> decoder_tensors(const DecoderConfig& config);
std::vector<HfAlias> decoder_aliases(const DecoderConfig& config);

}  // namespace tessera::models
