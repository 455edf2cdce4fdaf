#include "tessera/run/traffic_sum.h"

#include <algorithm>

namespace tessera::run {
namespace {
constexpr std::size_t kTotals = 3;  // sums over all formats
}  // namespace

void TrafficSum::start(const runtime::StepStatistics& own, bool asked_to_stop, comm::Communicator& world) {
  sums_ = {own.exposed_seconds * 1e3, static_cast<double>(own.gathered_bytes), static_cast<double>(own.reduced_bytes)};
  std::ranges::copy(own.gathered_by_format, sums_.begin() + kTotals);
  std::ranges::copy(own.flops_by_format, sums_.begin() + kTotals + quant::kFormats);
  std::ranges::copy(own.activations_by_format, sums_.begin() + kTotals + 2 * quant::kFormats);
  sums_.back() = asked_to_stop ? 1 : 0;
  ranks_ = world.size();
  summed_ = world.all_reduce(sums_.data(), sums_.size(), quant::DType::fp64);
}

void TrafficSum::finish(StepMetrics& metrics) const {
  summed_.synchronize();
  metrics.exposed_comm_ms = sums_[0] / ranks_;
  metrics.gathered_bytes = static_cast<std::int64_t>(sums_[1]);
  metrics.reduced_bytes = static_cast<std::int64_t>(sums_[2]);
  for (std::size_t format = 0; format < quant::kFormats; ++format) {
    metrics.gathered_by_format[format] = static_cast<std::int64_t>(sums_[kTotals + format]);
    metrics.flops_by_format[format] = sums_[kTotals + quant::kFormats + format];
    metrics.activations_by_format[format] = static_cast<std::int64_t>(sums_[kTotals + 2 * quant::kFormats + format]);
  }
}

}  // namespace tessera::run
