#include "tessera/models/model_config.h"

#include <fmt/format.h>

#include "tessera/nn/mesh_degrees.h"

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
  for (const HfTensor& tensor : config.hf_tensors(ExpertTensors::fused)) elements += tensor.box.elements();
  return elements;
}

std::int64_t num_active_params(const ModelConfig& config) {
  const ModelSizes sizes = config.sizes();
  std::int64_t idle = 0;
  if (sizes.num_experts > 0)
    for (const shard::ParameterSpec& spec : config.parameters({}))
      if (spec.domain == nn::kExpertDomain)
        idle += spec.compute.shape.elements() / sizes.num_experts * (sizes.num_experts - sizes.experts_per_token);
  return num_params(config) - idle;
}

std::string params_text(const ModelConfig& config) {
  const auto millions = [](std::int64_t count) { return static_cast<double>(count) / 1e6; };
  std::string text = fmt::format("{:.2f} M parameters", millions(num_params(config)));
  if (config.sizes().num_experts > 0) text += fmt::format(" ({:.2f} M active)", millions(num_active_params(config)));
  return text;
}

}  // namespace tessera::models
