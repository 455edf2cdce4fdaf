#include "tessera/runtime/step_context.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/shard/make_parameter.h"

namespace tessera::runtime {

StepContext::StepContext(shard::ParallelGroups& parallel, const shard::ParameterTypes& types,
                         const RuntimeOptions& options)
    : parallel(parallel),
      options(options),
      parameters({.mesh = parallel.mesh, .domains = parallel.domains}, parallel.rank, types, options,
                 [this](schedule::ParameterId id) { make_entry(id); }),
      recorder(parameters),
      agreement(parallel, recorder.history(), parameters),
      measure(parallel),
      timeline(parallel),
      waits(parallel, agreement, recorder, statistics, timeline),
      arenas{.transfers = std::make_shared<TransferArena>(parallel.device)},
      pool(parallel.device),
      early_rows(parallel) {}

ParameterEntry& StepContext::entry(schedule::ParameterId id) {
  TESSERA_CHECK(id >= 0 && static_cast<std::size_t>(id) < entries.size(), "parameter {} of {}", id, entries.size());
  return *entries[static_cast<std::size_t>(id)];
}

void StepContext::make_entry(schedule::ParameterId id) {
  const shard::ParameterSpec& spec = parameters.spec(id);
  const shard::Cuts& cuts = parameters.cuts(spec.domain);
  shard::ShardedParameter parameter =
      make_parameter(spec, types_of(spec, parameters.types()), cuts, parallel.place(spec.domain));
  parallel.provide(parameter, cuts);
  entries.push_back(std::make_unique<ParameterEntry>(std::move(parameter), parallel, cuts));
}

}  // namespace tessera::runtime
