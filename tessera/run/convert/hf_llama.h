// Our logical tensors of a Llama and Hugging Face's: the same numbers under other names. Weights are [out, in] in both;
// Hugging Face keeps q, k, v and gate, up apart, ours stack them by rows. The mapping is a list, used in both
// directions.
#pragma once
#include <string>
#include <vector>

#include "tessera/layout/box.h"
#include "tessera/models/llama_config.h"

namespace tessera::run {

// A tensor of Hugging Face's is a box of one of ours (in the matrix view: a vector is one row).
struct HfTensor {
  std::string hf_name;
  std::vector<std::int64_t> dims;  // of Hugging Face's tensor
  std::string name;                // ours
  layout::Box box;
};

struct LogicalTensor {
  std::string name;
  std::vector<std::int64_t> dims;
};

// In the order in which the model uses them. The output layer is absent when it is tied to the embedding.
std::vector<LogicalTensor> logical_tensors(const models::LlamaConfig& config);
// For each logical tensor in that order its parts from the first row to the last.
std::vector<HfTensor> hf_tensors(const models::LlamaConfig& config);

}  // namespace tessera::run
