// What a runtime keeps of one parameter.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/quant/formats/format.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/materialize.h"
#include "tessera/shard/reduction.h"
#include "tessera/shard/replicas.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/way_bytes.h"

namespace tessera::runtime {

struct ParameterEntry {
  ParameterEntry(shard::ShardedParameter made, const shard::ParallelGroups& parallel, const shard::Cuts& cuts)
      : parameter(std::move(made)),
        ways(shard::WayBytes(parameter.spec, parameter.layouts, parameter.types, cuts, parameter.by_rows)
                 .at(parameter.place)),
        materializer(parameter, parallel, ways.gather),
        reducer(parameter, parallel, cuts, ways.reduce),
        replicas(parameter, parallel) {
    if (parameter.by_rows) rows.emplace(parameter, parallel);
    if (parameter.spec.encoding) format = format_of(*parameter.spec.encoding);
  }

  const std::string& name() const { return parameter.spec.name; }

  shard::ShardedParameter parameter;
  shard::Ways ways;                            // what this rank receives by each
  quant::Format format = quant::Format::bf16;  // of its gathers
  // Of a weight: what backward passes read instead, if anything.
  schedule::ParameterId backward_weight = schedule::kNoParameter;
  shard::Materializer materializer;
  shard::Reducer reducer;
  shard::Replicas replicas;
  std::optional<shard::RowGather> rows;  // of a table whose rows travel by index

  int users = 0;                    // consumes not yet released
  const std::byte* view = nullptr;  // the gathered weight while there are users
  base::Buffer demand_weight;       // it, where no schedule foresaw it

  std::byte* staging = nullptr;  // of this microbatch's gradient; null: not asked for, or on its way
  base::Buffer demand_staging;   // it, where no schedule foresaw it
  bool produced = false;         // in this microbatch, and not yet on its way
  bool replicas_summed = false;  // in this step: main_grad holds the sum over replicas, or it is on its way
};

using ParameterEntries = std::vector<std::unique_ptr<ParameterEntry>>;

// For messages, by parameter.
inline std::vector<std::string> names_of(const ParameterEntries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry->name());
  return names;
}

}  // namespace tessera::runtime
