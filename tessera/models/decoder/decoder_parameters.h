// Lists the parameters of a decoder without building the model: names (docs/checkpoint.md), logical shapes, compute
// layouts.
#pragma once
#include <vector>

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/decoder/decoder_layouts.h"
#include "tessera/models/model_config.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/parameter.h"

namespace tessera::models {

// Indices into the list of parameters, which are also their ids in a runtime. kNoParameter: the model does not have
// this parameter.
struct DecoderBlockIds {
  schedule::ParameterId attention_norm, qkv, attention_output, mlp_norm;
  schedule::ParameterId gate_up = schedule::kNoParameter, down = schedule::kNoParameter;
  schedule::ParameterId qkv_bias = schedule::kNoParameter;
  schedule::ParameterId q_norm = schedule::kNoParameter, k_norm = schedule::kNoParameter;
  // A sparse layer has the following parameters and neither gate_up nor down.
  schedule::ParameterId router = schedule::kNoParameter;
  schedule::ParameterId router_bias = schedule::kNoParameter;
  schedule::ParameterId experts_gate_up = schedule::kNoParameter, experts_down = schedule::kNoParameter;
  schedule::ParameterId shared_gate_up = schedule::kNoParameter, shared_down = schedule::kNoParameter;
};
struct DecoderIds {
  schedule::ParameterId embedding;
  std::vector<DecoderBlockIds> blocks;
  schedule::ParameterId norm, output;  // output: the embedding's id if the two weights are tied
};
DecoderIds decoder_ids(const DecoderConfig& config);

// Returns the parameters in the order in which Decoder registers them. If options.shapes is not empty, each parameter
// has a layout for each of these shapes (shard::ParameterSpec::compute_by_slots). The member options.embedding selects
// how rows of the embedding table are read. A table that is tied to the output layer is always gathered, because the
// output layer reads all rows. A table is also gathered if a rank has several ranges of its rows; in this case the
// choice Lookup::rows is an Error. Throws the errors of check_parts, and Error if the parts are for another number of
// tp ranks.
std::vector<shard::ParameterSpec> decoder_parameters(const DecoderConfig& config, const ParameterOptions& options);

}  // namespace tessera::models
