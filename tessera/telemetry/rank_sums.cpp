#include "tessera/telemetry/rank_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::telemetry {
namespace {
enum Value : std::uint8_t { kWait, kReadings, kClock, kPower, kErrors };
static_assert(kErrors + 1 == kRankValues);
}  // namespace

void write_rank_values(std::span<double> place, double wait_ms, const std::optional<GpuReading>& gpu) {
  std::ranges::fill(place, 0.0);
  place[kWait] = wait_ms;
  if (!gpu) return;
  place[kReadings] = 1;
  place[kClock] = gpu->clock_mhz;
  place[kPower] = gpu->power_w;
  place[kErrors] = static_cast<double>(gpu->errors);
}

void add_rank_values(std::span<const double> all, StepMetrics& metrics) {
  const std::size_t ranks = all.size() / kRankValues;
  const auto value = [&](std::size_t rank, Value which) { return all[rank * kRankValues + which]; };
  std::size_t slowest = 0;
  bool has_waits = ranks > 1, has_readings = ranks > 0;
  double lowest_clock = std::numeric_limits<double>::infinity(), power = 0;
  std::int64_t errors = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    has_waits &= std::isfinite(value(rank, kWait));
    has_readings &= value(rank, kReadings) > 0;
    if (value(rank, kWait) < value(slowest, kWait)) slowest = rank;
    lowest_clock = std::min(lowest_clock, value(rank, kClock));
    power += value(rank, kPower);
    errors += static_cast<std::int64_t>(value(rank, kErrors));
  }
  if (has_waits) {
    metrics.slowest_rank = static_cast<int>(slowest);
    metrics.slowest_rank_wait_ms = value(slowest, kWait);
  }
  if (!has_readings) return;
  metrics.gpu_clock_mhz = lowest_clock;
  metrics.gpu_power_w = power;
  metrics.gpu_errors = errors;
}

}  // namespace tessera::telemetry
