#include "tessera/runtime/on_demand.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/shard/host_time.h"

namespace tessera::runtime {

shard::Recording OnDemand::record_last(schedule::ParameterId id) {
  const schedule::Trace& trace = step_.recorder.trace();
  return record(step_.timeline, trace, trace.size() - 1, {&id, 1});
}

void OnDemand::gather(ParameterEntry& entry, schedule::ParameterId id) {
  const int domain = entry.domain();
  comm::Communicator& demand = step_.parallel.of(domain, mesh::Transfer::demand);
  step_.waits.for_agreement(demand);
  // The buffer first holds the unpacked weight, if the weight is unpacked, and then the gathered planes.
  base::Buffer weight = step_.pool.take(entry.materializer.unpacked_bytes() + entry.materializer.bytes());
  std::byte* const unpacked = weight.data();
  std::byte* const gathered = unpacked + entry.materializer.unpacked_bytes();
  entry.hold_weight(std::move(weight));
  const shard::Materializer::Groups groups{demand, step_.parallel.has(domain, mesh::Transfer::gather_compute)
                                                       ? &step_.parallel.of(domain, mesh::Transfer::gather_compute)
                                                       : nullptr};
  const double start = host_seconds(step_.parallel);
  step_.waits.until_done(entry.materializer.start(entry.parameter, groups, gathered, {}, record_last(id)),
                         mesh::Transfer::gather, {&id, 1});
  entry.materializer.unpack(entry.parameter, gathered, unpacked, step_.parallel.kernels());
  step_.statistics.count_gathered(entry.format, total_bytes(entry.ways.gather));
  step_.measure.gathered(id, host_seconds(step_.parallel) - start);
  ++step_.statistics.demand_gathers;
}

void OnDemand::copy_columnwise(ParameterEntry& entry, schedule::ParameterId id) {
  base::Buffer copy = step_.pool.take(entry.materializer.columnwise_bytes());
  const quant::Transposition work =
      entry.materializer.columnwise_copy(entry.parameter, const_cast<std::byte*>(entry.view()), copy.data());
  step_.measure.copied(id, [&] { step_.parallel.kernels().create_columnwise({&work, 1}); });
  entry.hold_columnwise(std::move(copy));
  ++step_.statistics.columnwise_copies;
}

void OnDemand::release(ParameterEntry& entry) {
  return_buffer(entry.take_weight());
}

void OnDemand::release_columnwise(ParameterEntry& entry) {
  return_buffer(entry.take_columnwise());
}

// Returns a buffer to the pool, after the work of compute that reads it. The next user of the buffer may write to it
// immediately.
void OnDemand::return_buffer(base::Buffer buffer) {
  if (buffer.size() == 0) return;
  step_.parallel.compute->synchronize();
  step_.pool.return_buffer(std::move(buffer));
}

void OnDemand::stage(ParameterEntry& entry) {
  entry.hold_staging(step_.pool.take(entry.reducer.staging_bytes()));
  staged_ += static_cast<std::int64_t>(entry.reducer.staging_bytes());
  staged_peak_ = std::max(staged_peak_, staged_);
}

void OnDemand::start_reduction(schedule::ParameterId id) {
  ParameterEntry& entry = step_.entry(id);
  TESSERA_CHECK(!entry.replicas_summed(), "'{}': a gradient is produced after the last was summed over the replicas",
                entry.name());
  base::Buffer scratch = step_.pool.take(entry.reducer.scratch_bytes());
  shard::Reducing member{&entry.parameter, &entry.reducer, entry.take_gradient(), scratch.data()};
  exchanges_.push_back({id, shard::reduce({&member, 1}, step_.parallel, /*is_last=*/false, record_last(id)),
                        entry.take_staging(), std::move(scratch)});
  step_.statistics.reduced_bytes += total_bytes(entry.ways.reduce);
}

void OnDemand::finish_reductions() {
  for (Exchange& exchange : exchanges_) {
    step_.waits.until_done(exchange.summed, mesh::Transfer::reduce, {&exchange.id, 1});
    staged_ -= static_cast<std::int64_t>(exchange.staging.size());
    if (exchange.staging.size() > 0) step_.pool.return_buffer(std::move(exchange.staging));
    step_.pool.return_buffer(std::move(exchange.scratch));
  }
  exchanges_.clear();
}

void OnDemand::reduce(schedule::ParameterId id) {
  step_.waits.for_agreement(step_.parallel.of(step_.entry(id).domain(), mesh::Transfer::demand));
  const double start = host_seconds(step_.parallel);
  const std::int64_t before = step_.statistics.reduced_bytes;
  start_reduction(id);
  finish_reductions();
  step_.measure.reduced(host_seconds(step_.parallel) - start, step_.statistics.reduced_bytes - before);
}

void OnDemand::reduce_microbatch() {
  for (comm::Communicator* demand : step_.parallel.made(mesh::Transfer::demand)) step_.waits.for_agreement(*demand);
  const double start = host_seconds(step_.parallel);
  const std::int64_t before = step_.statistics.reduced_bytes;
  for (schedule::ParameterId id = 0; id < static_cast<schedule::ParameterId>(step_.entries.size()); ++id)
    if (step_.entry(id).is_produced()) start_reduction(id);
  finish_reductions();
  step_.measure.reduced(host_seconds(step_.parallel) - start, step_.statistics.reduced_bytes - before);
}

void OnDemand::reduce_replicas() {
  const double start = host_seconds(step_.parallel);
  const std::int64_t before = step_.statistics.reduced_bytes;
  std::vector<std::pair<schedule::ParameterId, base::Fence>> sums;
  for (schedule::ParameterId id = 0; id < static_cast<schedule::ParameterId>(step_.entries.size()); ++id) {
    ParameterEntry& entry = *step_.entries[static_cast<std::size_t>(id)];
    if (!entry.parameter.spec.trainable || entry.replicas_summed()) continue;
    const base::LaneMark mark = record_last(id).mark(mesh::Transfer::replicas, total_bytes(entry.ways.replicas));
    // This fence on compute comes after all sums of main_grad. If the step departed from its schedule, Replay::drain
    // has made compute wait for the sums that the schedule had issued.
    sums.emplace_back(id, sum_entry(entry, step_, step_.parallel.compute->record(), mark));
  }
  for (const auto& [id, summed] : sums) step_.waits.until_done(summed, mesh::Transfer::replicas, {&id, 1});
  step_.measure.reduced(host_seconds(step_.parallel) - start, step_.statistics.reduced_bytes - before);
}

base::Fence sum_entry(ParameterEntry& entry, StepContext& step, const base::Fence& written,
                      const base::LaneMark& mark) {
  entry.sum_replicas();
  step.statistics.reduced_bytes += total_bytes(entry.ways.replicas);
  return entry.replicas.sum(entry.parameter, step.parallel, written, mark);
}

}  // namespace tessera::runtime
