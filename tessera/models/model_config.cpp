#include "tessera/models/model_config.h"

namespace tessera::models {

std::vector<LogicalTensor> logical_tensors(const std::vector<HfTensor>& tensors) {
  std::vector<LogicalTensor> list;
  for (const HfTensor& part : tensors) {
    if (list.empty() || list.back().name != part.name) {
      list.push_back({part.name, part.whole.empty() ? part.dims : part.whole, part.is_wide});
    } else if (part.whole.empty()) {
      list.back().dims[0] += part.dims[0];
    }
  }
  return list;
}

std::int64_t num_params(const ModelConfig& config) {
  std::int64_t elements = 0;
  for (const HfTensor& tensor : config.hf_tensors()) elements += tensor.box.elements();
  return elements;
}

}  // namespace tessera::models
