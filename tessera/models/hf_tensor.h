// Maps our logical tensors to the tensors of a Hugging Face folder. The two kinds of tensor hold the same numbers under
// different names. Weights are [out, in] in both. Hugging Face stores q, k, v and gate, up separately; ours are stacked
// by rows. Import and export use the same list.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/layout/box.h"

namespace tessera::models {

// A Hugging Face tensor is a box of one of our tensors, viewed as a matrix. A vector is a matrix with one row.
struct HfTensor {
  std::string hf_name;
  std::vector<std::int64_t> dims;  // of the Hugging Face tensor
  std::string name;                // of our tensor
  layout::Box box;
  bool may_be_quantized = false;  // a folder may hold it in a number format
  // The dims of our tensor. Empty: the tensor's parts, stacked along the first dimension.
  std::vector<std::int64_t> whole = {};
  bool is_wide = false;  // ours is stored in the accumulator's type (ParameterSpec::is_wide)
};

// How a folder stores experts: a tensor for each matrix of each expert, or one tensor for all experts of a layer.
// separate: a tensor for each matrix of each expert. fused: one tensor for all experts of a layer, in the module "mlp"
// (newer versions of transformers). fused_in_module: one tensor for all experts, in the module that holds the separate
// tensors.
enum class ExpertTensors : std::uint8_t { separate, fused, fused_in_module };

// An optional tensor of a folder that duplicates another tensor, `of`.
struct HfAlias {
  std::string hf_name, of;
};

struct LogicalTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  bool is_wide = false;
};
// Returns our tensors in the order of the list. In the list, the parts of a tensor are consecutive and go from its
// first row (element, for a vector) to its last.
std::vector<LogicalTensor> logical_tensors(const std::vector<HfTensor>& tensors);

}  // namespace tessera::models
