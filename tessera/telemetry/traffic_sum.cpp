#include "tessera/telemetry/traffic_sum.h"

#include <algorithm>

#include "tessera/telemetry/rank_sums.h"

namespace tessera::telemetry {
namespace {
constexpr std::size_t kTotals = 4;  // number of sums that are over all formats
}  // namespace

void TrafficSum::start(const runtime::StepStatistics& own, bool stop_requested, const std::optional<GpuReading>& gpu,
                       comm::Communicator& world) {
  ranks_ = world.size();
  sums_.assign(kShared + static_cast<std::size_t>(ranks_) * kRankValues, 0.0);
  sums_[0] = own.exposed_seconds * 1e3;
  sums_[1] = own.exposed_tp_seconds * 1e3;
  sums_[2] = static_cast<double>(own.gathered_bytes);
  sums_[3] = static_cast<double>(own.reduced_bytes);
  std::ranges::copy(own.gathered_by_format, sums_.begin() + kTotals);
  std::ranges::copy(own.flops_by_format, sums_.begin() + kTotals + quant::kFormats);
  std::ranges::copy(own.activations_by_format, sums_.begin() + kTotals + 2 * quant::kFormats);
  sums_[kStopRequested] = stop_requested ? 1 : 0;
  const std::size_t own_place = kShared + static_cast<std::size_t>(world.rank()) * kRankValues;
  write_rank_values(std::span(sums_).subspan(own_place, kRankValues), sums_[0], gpu);
  summed_ = world.all_reduce(sums_.data(), static_cast<std::int64_t>(sums_.size()), quant::DType::fp64);
}

void TrafficSum::finish(StepMetrics& metrics) const {
  summed_.synchronize();
  add_rank_values(std::span(sums_).subspan(kShared), metrics);
  metrics.exposed_comm_ms = sums_[0] / ranks_;
  metrics.gathered_bytes = static_cast<std::int64_t>(sums_[2]);
  metrics.reduced_bytes = static_cast<std::int64_t>(sums_[3]);
  for (std::size_t format = 0; format < quant::kFormats; ++format) {
    metrics.gathered_by_format[format] = static_cast<std::int64_t>(sums_[kTotals + format]);
    metrics.flops_by_format[format] = sums_[kTotals + quant::kFormats + format];
    metrics.activations_by_format[format] = static_cast<std::int64_t>(sums_[kTotals + 2 * quant::kFormats + format]);
  }
  const bool has_activations = std::ranges::any_of(metrics.activations_by_format, [](auto bytes) { return bytes > 0; });
  if (has_activations) metrics.exposed_tp_ms = sums_[1] / ranks_;
}

}  // namespace tessera::telemetry
