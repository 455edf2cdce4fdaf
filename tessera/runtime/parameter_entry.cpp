#include "tessera/runtime/parameter_entry.h"

namespace tessera::runtime {

ParameterEntry::ParameterEntry(shard::ShardedParameter made, const shard::ParallelGroups& parallel,
                               const shard::Cuts& cuts)
    : parameter(std::move(made)),
      ways(shard::WayBytes(parameter.spec, parameter.layouts, parameter.types, cuts, parameter.by_rows)
               .at(parameter.place)),
      materializer(parameter, parallel, ways.gather),
      reducer(parameter, parallel, cuts, ways.reduce),
      replicas(parameter, parallel) {
  if (parameter.by_rows) rows.emplace(parameter, parallel);
  if (parameter.spec.encoding) format = format_of(*parameter.spec.encoding);
}

void ParameterEntry::begin_step() {
  parameter.begin_step();
  replicas_summed_ = false;
  last_produced_ = -1;
}

void ParameterEntry::hold_weight(base::Buffer weight) {
  demand_weight_ = std::move(weight);
  view_ = demand_weight_.data();
}

void ParameterEntry::hold_columnwise(base::Buffer copy) {
  demand_columnwise_ = std::move(copy);
  columnwise_ = demand_columnwise_.data();
}

void ParameterEntry::hold_staging(base::Buffer staging) {
  demand_staging_ = std::move(staging);
  staging_ = demand_staging_.data();
}

void ParameterEntry::written() {
  take_gradient();
  parameter.next_sum(/*is_last=*/true);
  sum_replicas();
}

std::byte* ParameterEntry::take_gradient() {
  produced_ = false;
  return std::exchange(staging_, nullptr);
}

}  // namespace tessera::runtime
