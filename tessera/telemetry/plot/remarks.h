// Remarks on a run, computed from its metrics: spikes of the loss, skipped steps, the slowest rank.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/telemetry/plot/panel.h"
#include "tessera/telemetry/plot/plotted_run.h"

namespace tessera::telemetry {

struct LossSpike {
  std::int64_t first = 0, last = 0;  // first and last step of the spike
  double loss = 0;                   // the highest loss of these steps
  double median = 0;                 // the median of the losses before `first`
  bool operator==(const LossSpike&) const = default;
};

// Returns the spikes of the loss. A loss is compared with the 32 finite losses before it; losses of earlier spikes are
// left out, and at least 8 losses must remain. A loss is a spike if it exceeds their median by more than 2 % and by
// more than 6 standard deviations. The standard deviation is estimated as 1.4826 times the median distance from the
// median. Adjacent steps form one spike. A loss that is not finite is not a spike; it is reported with the skipped
// steps.
std::vector<LossSpike> find_spikes(std::span<const StepMetrics> steps);

// Returns lines of text about a run: steps and losses, held-out loss, the 5 highest spikes, losses that are not finite,
// skipped and suppressed steps, the rank that was slowest most often, and whether the last line of the metrics is
// incomplete. On a logarithmic axis, also counts the losses that the axis cannot show.
std::vector<std::string> remarks_of(const PlottedRun& run, LossAxis axis = LossAxis::automatic);

}  // namespace tessera::telemetry
