#include "tessera/telemetry/graph_hint.h"

#include <fmt/format.h>

namespace tessera::telemetry {

std::string graph_hint(const HostShare& share) {
  if (!share.accepts_graph || share.has_graph || !(share.waiting_seconds > share.step_seconds / 2)) return "";
  return fmt::format("the GPU waits for its host in {:.0f} % of a step: --cuda-graph on enqueues a step as one launch",
                     100 * share.waiting_seconds / share.step_seconds);
}

bool GraphHint::is_measured(std::int64_t number) const {
  return share_.accepts_graph && !share_.has_graph && number >= kFirstMeasured && number < kSteps;
}

std::string GraphHint::add(std::int64_t number, double waiting_seconds, double step_seconds) {
  if (!is_measured(number)) return "";
  share_.waiting_seconds += waiting_seconds;
  share_.step_seconds += step_seconds;
  return number + 1 == kSteps ? graph_hint(share_) : "";
}

}  // namespace tessera::telemetry
