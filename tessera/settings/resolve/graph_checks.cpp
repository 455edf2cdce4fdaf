#include "tessera/settings/resolve/graph_checks.h"

#include <string>

#include "tessera/base/error.h"

namespace tessera::settings {
namespace {

// Returns the settings that a graph does not support, or "". Does not examine places without a rank.
std::string refusal_of_graph(const TrainConfig& config) {
  if (config.backend != Backend::nccl) return fmt::format("--backend {}, expected nccl", name_of(config.backend));
  if (config.mask_documents) return "--mask-documents on: documents differ from step to step";
  if (config.debug_delays != 0)
    return fmt::format("--debug-delays {}: delays differ from step to step", config.debug_delays);
  return "";
}

}  // namespace

void check_graph(const TrainConfig& config) {
  if (!config.cuda_graph) return;
  if (const std::string refusal = refusal_of_graph(config); !refusal.empty())
    throw InputError("--cuda-graph: got on with {}", refusal);
}

bool accepts_graph(const TrainConfig& config) {
  return refusal_of_graph(config).empty() && !config.mesh.has_unused_places();
}

}  // namespace tessera::settings
