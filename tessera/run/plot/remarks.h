// Remarks on the lines of a run: spikes of the loss, skipped steps, the slowest rank.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/run/plot/plotted_run.h"

namespace tessera::run {

struct LossSpike {
  std::int64_t first = 0, last = 0;  // steps
  double loss = 0;                   // the highest loss of these steps
  double median = 0;                 // the median of the losses before `first`
  bool operator==(const LossSpike&) const = default;
};

// A loss is a spike if it exceeds the median of the 32 finite losses before it, without those of spikes, by more than 2
// % and by more than 6 standard deviations. The deviation is 1.4826 times the median distance from the median. At least
// 8 losses must precede it. Neighbouring steps are one spike. Losses that are not finite are not spikes (skipped steps
// report them).
std::vector<LossSpike> find_spikes(std::span<const StepMetrics> steps);

// Returns lines of text about a run: steps and losses, held-out loss, spikes (the highest 5), losses that are not
// finite, skipped and suppressed steps, the rank that was slowest in most steps, and whether the last line is
// incomplete.
std::vector<std::string> remarks_of(const PlottedRun& run);

}  // namespace tessera::run
