#include "tessera/run/traffic_sum.h"

namespace tessera::run {

void TrafficSum::start(const runtime::StepStatistics& own, comm::Communicator& world) {
  sums_ = {own.exposed_seconds * 1e3, static_cast<double>(own.gathered_bytes), static_cast<double>(own.reduced_bytes)};
  ranks_ = world.size();
  summed_ = world.all_reduce(sums_.data(), sums_.size(), quant::DType::fp64);
}

void TrafficSum::finish(StepMetrics& metrics) const {
  summed_.synchronize();
  metrics.exposed_comm_ms = sums_[0] / ranks_;
  metrics.gathered_bytes = static_cast<std::int64_t>(sums_[1]);
  metrics.reduced_bytes = static_cast<std::int64_t>(sums_[2]);
}

}  // namespace tessera::run
