// The parameters of a Llama as a list, without building it: names (docs/checkpoint.md), logical shapes, compute
// layouts.
#pragma once
#include <vector>

#include "tessera/models/llama_config.h"
#include "tessera/models/llama_layouts.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/parameter.h"

namespace tessera::models {

// Indices into the list, which are the ids in a runtime.
struct LlamaBlockIds {
  schedule::ParameterId attention_norm, qkv, attention_output, mlp_norm, gate_up, down;
};
struct LlamaIds {
  schedule::ParameterId embedding;
  std::vector<LlamaBlockIds> blocks;
  schedule::ParameterId norm, output;  // output: the embedding when tied
};
LlamaIds llama_ids(const LlamaConfig& config);

// In the order in which Llama registers them. partial_norms: each tp rank computes a part of the norms' gradients
// (sequence parallelism with more than one tp rank). Errors: those of check_parts.
std::vector<shard::ParameterSpec> llama_parameters(const LlamaConfig& config, const LlamaParts& parts,
                                                   bool partial_norms);
// With even parts.
std::vector<shard::ParameterSpec> llama_parameters(const LlamaConfig& config, int tp_size, bool partial_norms);
// The same without the blocks from `layers` on, which are alike: for what need not look at each of them.
std::vector<shard::ParameterSpec> llama_parameters(const LlamaConfig& config, int tp_size, bool partial_norms,
                                                   std::int64_t layers);
// The embedding table of such a list is read by rows; a tied one, which is the output layer's weight too, is not. One
// of which some rank holds several ranges of rows travels whole. Errors: Lookup::rows of such a one.
void set_embedding_reads(std::vector<shard::ParameterSpec>& specs, const LlamaConfig& config,
                         const shard::RowReads& reads);

}  // namespace tessera::models
