#include "tessera/settings/resolve/expert_checks.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/router/router_options.h"
#include "tessera/settings/resolve/tp_tokens.h"

namespace tessera::settings {
namespace {

// Throws InputError for settings of experts that GPUs do not support.
void check_experts_on_gpus(const TrainConfig& config, const models::ModelSizes& sizes) {
  if (config.dtype == quant::DType::bf16 && config.grad_wire && *config.grad_wire != quant::DType::bf16)
    throw InputError(
        "--grad-wire: got {}, expected bf16: on GPUs the products of experts round their gradients to bf16",
        name_of(*config.grad_wire));
  check_device_experts(config.model, sizes);
}

// Throws InputError for settings that the routers of the model do not support.
void check_routers(const TrainConfig& config, const models::ModelSizes& sizes) {
  if (config.expert_bias_rate > 0 && !sizes.has_router_bias)
    throw InputError("--expert-bias-rate: got {}, expected 0: the routers of model '{}' have no biases",
                     config.expert_bias_rate, config.model);
  if (config.router.aux != nn::MoeAux::layer && sizes.has_sigmoid_scores)
    throw InputError("--moe-aux: got pooled, expected layer: the routers of model '{}' have no auxiliary loss",
                     config.model);
  if (config.router.z_coefficient > 0 && sizes.has_sigmoid_scores)
    throw InputError("--router-z-loss: got {}, expected 0: the routers of model '{}' have sigmoid scores",
                     config.router.z_coefficient, config.model);
}

}  // namespace

void check_device_experts(std::string_view model, const models::ModelSizes& sizes) {
  if (sizes.num_experts > ops::kMaxDeviceExperts)
    throw InputError(
        "--model: '{}' has {} experts in a layer, expected at most {} on GPUs: a router chooses among all of them, for "
        "every --ep",
        model, sizes.num_experts, ops::kMaxDeviceExperts);
}

void check_experts(const TrainConfig& config, const models::ModelSizes& sizes) {
  if (sizes.num_experts == 0) {
    for (const auto& [flag, degree] :
         {std::pair{"--etp", config.mesh.etp}, {"--ep", config.mesh.ep}, {"--egtp", config.mesh.egtp}})
      if (degree != 1)
        throw InputError("{}: got {}, expected 1: model '{}' has no experts", flag, degree, config.model);
    for (const auto& [flag, is_given] : {std::pair{"--moe-aux", config.router.aux != nn::MoeAux::layer},
                                         {"--router-z-loss", config.router.z_coefficient != 0},
                                         {"--expert-room", config.given.contains("expert_room")},
                                         {"--expert-bias-rate", config.expert_bias_rate > 0},
                                         {"--expert-capacity", config.expert_capacity != 0},
                                         {"--expert-counts", config.expert_counts != 0}})
      if (is_given) throw InputError("{}: model '{}' has no experts", flag, config.model);
    return;
  }
  if (config.backend == Backend::nccl) check_experts_on_gpus(config, sizes);
  check_routers(config, sizes);
  if (config.mesh.ep > sizes.num_experts)
    throw InputError("--ep: got {}, expected at most {}, the experts of model '{}'", config.mesh.ep, sizes.num_experts,
                     config.model);
  if (config.mesh.tp > 1 && !splits_tokens(config))
    throw InputError("--sequence-parallel: got off with --tp {}, expected on, which a model with experts needs",
                     config.mesh.tp);
  nn::check_expert_degrees(degrees_in(config.mesh));
}

}  // namespace tessera::settings
