#include "tessera/telemetry/traffic_sum.h"

#include "tessera/telemetry/rank_sums.h"

namespace tessera::telemetry {
namespace {

void append(StepMetrics own, std::vector<double>& sums) {
  for (const Metric& metric : metric_rows())
    if (metric.over_ranks != OverRanks::same) each_number(metric, own, [&](double& number) { sums.push_back(number); });
}

// Reads the sums of a step from `next`, in the order in which append() writes them.
void read(const double*& next, int ranks, StepMetrics& step) {
  for (const Metric& metric : metric_rows()) {
    const int divisor = metric.over_ranks == OverRanks::mean ? ranks : 1;
    if (metric.over_ranks != OverRanks::same)
      each_number(metric, step, [&](double& number) { number = *next++ / divisor; });
  }
}

}  // namespace

void TrafficSum::start(const StepMetrics& own, const Requests& requests, const std::optional<GpuReading>& gpu,
                       comm::Communicator& world) {
  ranks_ = world.size();
  sums_ = {requests.stop ? 1.0 : 0.0, requests.save ? 1.0 : 0.0};
  append(own, sums_);
  const std::size_t own_place = sums_.size() + static_cast<std::size_t>(world.rank()) * kRankValues;
  sums_.resize(sums_.size() + static_cast<std::size_t>(ranks_) * kRankValues);
  write_rank_values(std::span(sums_).subspan(own_place, kRankValues), own.exposed_comm_ms, gpu);
  summed_ = world.all_reduce(sums_.data(), static_cast<std::int64_t>(sums_.size()), quant::DType::fp64);
}

void TrafficSum::finish(StepMetrics& metrics) const {
  summed_.synchronize();
  const double* next = sums_.data() + 2;
  read(next, ranks_, metrics);
  add_rank_values({next, sums_.data() + sums_.size()}, metrics);
}

void combine_over_ranks(std::vector<StepMetrics>& steps, comm::Communicator& world) {
  std::vector<double> sums;
  for (const StepMetrics& own : steps) append(own, sums);
  world.all_reduce(sums.data(), static_cast<std::int64_t>(sums.size()), quant::DType::fp64).synchronize();
  const double* next = sums.data();
  for (StepMetrics& step : steps) read(next, world.size(), step);
}

}  // namespace tessera::telemetry
