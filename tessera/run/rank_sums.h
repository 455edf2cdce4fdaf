// Values that each rank contributes to the line of a step, and what the line says about all ranks.
#pragma once
#include <cstddef>
#include <optional>
#include <span>

#include "tessera/run/metrics/gpu_monitor.h"
#include "tessera/run/metrics/metrics.h"

namespace tessera::run {

inline constexpr std::size_t kRankValues = 5;  // doubles for each rank

// Writes one rank's values to its place in a list that is 0 elsewhere. The sum of the ranks' lists has all values.
// wait_ms: time that the rank waited for communication; NaN if it was not measured.
void write_rank_values(std::span<double> place, double wait_ms, const std::optional<GpuReading>& gpu);
// `all`: kRankValues for each rank. Sets slowest_rank if several ranks have measured waits. The slowest rank is the one
// that waited least, because the other ranks waited for it. Sets the values of GPUs if every rank has a reading.
void add_rank_values(std::span<const double> all, StepMetrics& metrics);

}  // namespace tessera::run
