// Values that each rank contributes to the metrics of a step, and the metrics that are computed from the values of all
// ranks.
#pragma once
#include <cstddef>
#include <optional>
#include <span>

#include "tessera/telemetry/gpu/gpu_monitor.h"
#include "tessera/telemetry/metric.h"

namespace tessera::telemetry {

inline constexpr std::size_t kRankValues = 5;  // number of doubles for each rank

// Writes the values of one rank to `place`, its part of a list. The other parts of the list are 0, so the sum of all
// ranks' lists contains the values of all ranks. wait_ms is the time that the rank waited for communication, or NaN if
// the time was not measured.
void write_rank_values(std::span<double> place, double wait_ms, const std::optional<GpuReading>& gpu);
// Sets slowest_rank and slowest_rank_wait_ms if several ranks have measured waits, and the metrics of the GPUs if every
// rank has a reading. `all` contains kRankValues doubles for each rank.
void add_rank_values(std::span<const double> all, StepMetrics& metrics);

}  // namespace tessera::telemetry
