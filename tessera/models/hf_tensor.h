// Our logical tensors and those of a Hugging Face folder: the same numbers under other names. Weights are [out, in] in
// both; Hugging Face keeps q, k, v and gate, up apart, ours stack them by rows. A model's list of them is used in both
// directions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/layout/box.h"

namespace tessera::models {

// A tensor of Hugging Face's is a box of one of ours (in the matrix view: a vector is one row).
struct HfTensor {
  std::string hf_name;
  std::vector<std::int64_t> dims;  // of Hugging Face's tensor
  std::string name;                // ours
  layout::Box box;
  bool may_be_quantized = false;  // a folder may hold it in a number format
};

// A tensor that a folder may hold besides, and that says what another one says already.
struct HfAlias {
  std::string hf_name, of;
};

struct LogicalTensor {
  std::string name;
  std::vector<std::int64_t> dims;
};
// Ours, in the order of the list: the parts of one follow each other from its first row (of a vector: its first
// element) to the last.
std::vector<LogicalTensor> logical_tensors(const std::vector<HfTensor>& tensors);

}  // namespace tessera::models
