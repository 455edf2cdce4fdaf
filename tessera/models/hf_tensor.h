// Maps Tessera's logical tensors to the tensors of a Hugging Face folder. Tensors of both kinds contain the same
// numbers under different names. Weights of both kinds are [out, in]. A Hugging Face folder has separate tensors for q,
// k and v and for gate and up. Tessera stacks these tensors by rows. Import and export use the same list.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/layout/box.h"

namespace tessera::models {

// A Hugging Face tensor, which is a box of one of Tessera's tensors, viewed as a matrix. A vector is a matrix with one
// row.
struct HfTensor {
  std::string hf_name;
  std::vector<std::int64_t> dims;  // of the Hugging Face tensor
  std::string name;                // name of Tessera's tensor
  layout::Box box;
  bool may_be_quantized = false;  // whether a folder may store the tensor in a number format
  // The dims of Tessera's tensor. Empty: the dims follow from the tensor's parts, which are stacked along the first
  // dimension.
  std::vector<std::int64_t> whole = {};
  bool is_wide = false;     // whether Tessera stores the tensor in the accumulator's type (ParameterSpec::is_wide)
  bool keeps_fp32 = false;  // whether transformers stores the tensor in fp32 in a folder of another type
};

// How a folder stores experts. `separate`: a tensor for each matrix of each expert. `fused`: one tensor for all experts
// of a layer, in the module "mlp" (newer versions of transformers). `fused_in_module`: one tensor for all experts of a
// layer, in the module that would hold the separate tensors.
enum class ExpertTensors : std::uint8_t { separate, fused, fused_in_module };

// An optional tensor of a folder that has the values of another tensor, `of`.
struct HfAlias {
  std::string hf_name, of;
};

struct LogicalTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  bool is_wide = false;
};
// Returns Tessera's tensors in the order of the list. In the list, the parts of a tensor must be consecutive and
// ordered by rows (by elements, for a vector).
std::vector<LogicalTensor> logical_tensors(const std::vector<HfTensor>& tensors);

}  // namespace tessera::models
