// The parameters of a dense decoder as a list, without building it: names (docs/checkpoint.md), logical shapes, compute
// layouts.
#pragma once
#include <vector>

#include "tessera/models/decoder_config.h"
#include "tessera/models/decoder_layouts.h"
#include "tessera/models/model_config.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/parameter.h"

namespace tessera::models {

// Indices into the list, which are the ids in a runtime. kNoParameter: what the model does not have.
struct DecoderBlockIds {
  schedule::ParameterId attention_norm, qkv, attention_output, mlp_norm, gate_up, down;
  schedule::ParameterId qkv_bias = schedule::kNoParameter;
  schedule::ParameterId q_norm = schedule::kNoParameter, k_norm = schedule::kNoParameter;
};
struct DecoderIds {
  schedule::ParameterId embedding;
  std::vector<DecoderBlockIds> blocks;
  schedule::ParameterId norm, output;  // output: the embedding when tied
};
DecoderIds decoder_ids(const DecoderConfig& config);

// In the order in which Decoder registers them. The embedding table is read by rows as the options say; a tied one,
// which is the output layer's weight too, is not. One of which some rank holds several ranges of rows travels whole.
// Errors: those of check_parts; Lookup::rows of such a table; parts of another number of tp ranks.
std::vector<shard::ParameterSpec> decoder_parameters(const DecoderConfig& config, const ParameterOptions& options);

}  // namespace tessera::models
