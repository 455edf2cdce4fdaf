#include "tessera/shard/on_demand.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/shard/host_time.h"
#include "tessera/shard/replicas.h"

namespace tessera::shard {

void OnDemand::gather(Entry& entry, ParameterId id) {
  Stopwatch exposed(parallel_, statistics_.exposed_seconds);
  agreement_.compare(*parallel_.gtp_demand, agreement_.hash(), "what a step did", entries_);
  entry.demand_weight = pool_.take(entry.materializer.bytes());
  entry.view = entry.demand_weight.data();
  const Materializer::Groups groups{*parallel_.gtp_demand, *parallel_.tp_gather};
  const double start = host_seconds(parallel_);
  agreement_.wait(entry.materializer.start(entry.parameter, groups, entry.demand_weight.data(), {}), entries_);
  statistics_.gathered_bytes += entry.materializer.received_bytes();
  measure_.gathered(id, host_seconds(parallel_) - start);
  ++statistics_.demand_gathers;
}

void OnDemand::release(Entry& entry) {
  if (entry.demand_weight.size() > 0) pool_.give_back(std::exchange(entry.demand_weight, {}));
}

std::byte* OnDemand::staging(Entry& entry) {
  entry.demand_staging = pool_.take(entry.reducer.staging_bytes());
  return entry.demand_staging.data();
}

void OnDemand::reduce_microbatch() {
  agreement_.compare(*parallel_.gtp_demand, agreement_.hash(), "what a step did", entries_);
  struct Exchange {
    base::Fence summed;
    base::Buffer staging, scratch;
  };
  std::vector<Exchange> exchanges;
  const double start = host_seconds(parallel_);
  const std::int64_t before = statistics_.reduced_bytes;
  for (auto& owned : entries_) {
    Entry& entry = *owned;
    if (!entry.produced) continue;
    TESSERA_CHECK(!entry.replicas_summed, "'{}': a gradient is produced after the last was summed over the replicas",
                  entry.name());
    base::Buffer scratch = pool_.take(entry.reducer.scratch_bytes());
    Reducing member{&entry.parameter, &entry.reducer, entry.staging, scratch.data()};
    exchanges.push_back({reduce({&member, 1}, parallel_, parallel_.compute->record()),
                         std::exchange(entry.demand_staging, {}), std::move(scratch)});
    statistics_.reduced_bytes += entry.reducer.received_bytes();
    entry.staging = nullptr;
    entry.produced = false;
  }
  Stopwatch exposed(parallel_, statistics_.exposed_seconds);
  for (Exchange& exchange : exchanges) {
    agreement_.wait(exchange.summed, entries_);
    if (exchange.staging.size() > 0) pool_.give_back(std::move(exchange.staging));
    pool_.give_back(std::move(exchange.scratch));
  }
  measure_.reduced(host_seconds(parallel_) - start, statistics_.reduced_bytes - before);
}

void OnDemand::reduce_replicas() {
  std::vector<base::Fence> fences;
  for (auto& entry : entries_)
    if (entry->parameter.spec.trainable && !entry->replicas_summed)
      fences.push_back(sum_entry(*entry, parallel_, {}, statistics_));
  Stopwatch exposed(parallel_, statistics_.exposed_seconds);
  for (const base::Fence& fence : fences) agreement_.wait(fence, entries_);
}

base::Fence sum_entry(Entry& entry, Parallel& parallel, const base::Fence& written, StepStatistics& statistics) {
  entry.replicas_summed = true;
  statistics.reduced_bytes += replica_sum_bytes(entry.parameter, parallel);
  return sum_over_replicas(entry.parameter, parallel, written);
}

}  // namespace tessera::shard
