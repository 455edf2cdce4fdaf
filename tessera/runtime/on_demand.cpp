#include "tessera/runtime/on_demand.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/shard/host_time.h"

namespace tessera::runtime {

shard::Recording OnDemand::record_last(schedule::ParameterId id) {
  const schedule::Trace& trace = agreement_.trace();
  return record(timeline_, trace, trace.size() - 1, {&id, 1});
}

void OnDemand::gather(ParameterEntry& entry, schedule::ParameterId id) {
  const int domain = entry.parameter.spec.domain;
  comm::Communicator& demand = parallel_.of(domain, shard::Via::demand);
  waits_.for_agreement(demand);
  // The unpacked weight if there is one, then what is gathered.
  entry.demand_weight = pool_.take(entry.materializer.unpacked_bytes() + entry.materializer.bytes());
  entry.view = entry.demand_weight.data();
  std::byte* gathered = entry.demand_weight.data() + entry.materializer.unpacked_bytes();
  const shard::Materializer::Groups groups{demand, parallel_.has(domain, shard::Via::gather_compute)
                                                       ? &parallel_.of(domain, shard::Via::gather_compute)
                                                       : nullptr};
  const double start = host_seconds(parallel_);
  waits_.until_done(entry.materializer.start(entry.parameter, groups, gathered, {}, record_last(id)),
                    schedule::Activity::gather, {&id, 1});
  entry.materializer.unpack(entry.parameter, gathered, entry.demand_weight.data(), parallel_.kernels());
  statistics_.count_gathered(entry.format, total_bytes(entry.ways.gather));
  measure_.gathered(id, host_seconds(parallel_) - start);
  ++statistics_.demand_gathers;
}

// Whoever takes the buffer next may write at once.
void OnDemand::release(ParameterEntry& entry) {
  if (entry.demand_weight.size() == 0) return;
  parallel_.compute->synchronize();
  pool_.give_back(std::exchange(entry.demand_weight, {}));
}

std::byte* OnDemand::staging(ParameterEntry& entry) {
  entry.demand_staging = pool_.take(entry.reducer.staging_bytes());
  return entry.demand_staging.data();
}

void OnDemand::reduce_microbatch() {
  for (comm::Communicator* demand : parallel_.made(shard::Via::demand)) waits_.for_agreement(*demand);
  const double start = host_seconds(parallel_);
  const std::int64_t before = statistics_.reduced_bytes;
  for (schedule::ParameterId id = 0; id < static_cast<schedule::ParameterId>(entries_.size()); ++id) {
    ParameterEntry& entry = *entries_[static_cast<std::size_t>(id)];
    if (!entry.produced) continue;
    TESSERA_CHECK(!entry.replicas_summed, "'{}': a gradient is produced after the last was summed over the replicas",
                  entry.name());
    base::Buffer scratch = pool_.take(entry.reducer.scratch_bytes());
    shard::Reducing member{&entry.parameter, &entry.reducer, entry.staging, scratch.data()};
    exchanges_.push_back({id, reduce({&member, 1}, parallel_, /*is_last=*/false, record_last(id)),
                          std::exchange(entry.demand_staging, {}), std::move(scratch)});
    statistics_.reduced_bytes += total_bytes(entry.ways.reduce);
    entry.staging = nullptr;
    entry.produced = false;
  }
  for (Exchange& exchange : exchanges_) {
    waits_.until_done(exchange.summed, schedule::Activity::reduce, {&exchange.id, 1});
    if (exchange.staging.size() > 0) pool_.give_back(std::move(exchange.staging));
    pool_.give_back(std::move(exchange.scratch));
  }
  exchanges_.clear();
  measure_.reduced(host_seconds(parallel_) - start, statistics_.reduced_bytes - before);
}

void OnDemand::reduce_replicas() {
  const double start = host_seconds(parallel_);
  const std::int64_t before = statistics_.reduced_bytes;
  std::vector<std::pair<schedule::ParameterId, base::Fence>> sums;
  for (schedule::ParameterId id = 0; id < static_cast<schedule::ParameterId>(entries_.size()); ++id) {
    ParameterEntry& entry = *entries_[static_cast<std::size_t>(id)];
    if (!entry.parameter.spec.trainable || entry.replicas_summed) continue;
    const base::LaneMark mark = record_last(id).mark(schedule::Activity::replicas, total_bytes(entry.ways.replicas));
    // Compute has waited for the sums that a schedule issued before the step left it.
    sums.emplace_back(id, sum_entry(entry, parallel_, parallel_.compute->record(), statistics_, mark));
  }
  for (const auto& [id, summed] : sums) waits_.until_done(summed, schedule::Activity::replicas, {&id, 1});
  measure_.reduced(host_seconds(parallel_) - start, statistics_.reduced_bytes - before);
}

base::Fence sum_entry(ParameterEntry& entry, shard::ParallelGroups& parallel, const base::Fence& written,
                      StepStatistics& statistics, const base::LaneMark& mark) {
  entry.replicas_summed = true;
  statistics.reduced_bytes += total_bytes(entry.ways.replicas);
  return entry.replicas.sum(entry.parameter, parallel, written, mark);
}

}  // namespace tessera::runtime
