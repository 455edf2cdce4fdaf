// The state that the parts of one runtime share: communicators, parameters, the record of the current step, memory, and
// the objects that measure and wait. RunningProgram, Replay, OnDemand, Plans and GraphSteps each take a StepContext as
// an argument.
#pragma once
#include "tessera/runtime/buffer_pool.h"
#include "tessera/runtime/parameter_entry.h"
#include "tessera/runtime/parameter_table.h"
#include "tessera/runtime/record/recorder.h"
#include "tessera/runtime/replay/arenas.h"
#include "tessera/runtime/replay/early_rows.h"
#include "tessera/runtime/watch/agreement.h"
#include "tessera/runtime/watch/host_pace.h"
#include "tessera/runtime/watch/measure.h"
#include "tessera/runtime/watch/statistics.h"
#include "tessera/runtime/watch/timeline.h"
#include "tessera/runtime/watch/waits.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread.
struct StepContext {
  // `parallel` outlives the context.
  StepContext(shard::ParallelGroups& parallel, const shard::ParameterTypes& types, const RuntimeOptions& options);
  StepContext(const StepContext&) = delete;
  StepContext& operator=(const StepContext&) = delete;

  ParameterEntry& entry(schedule::ParameterId id);  // throws Error for an unknown id

  shard::ParallelGroups& parallel;
  RuntimeOptions options;
  ParameterTable parameters;
  ParameterEntries entries;  // one for each parameter of `parameters`
  Recorder recorder;
  Agreement agreement;
  StepStatistics statistics;  // statistics of the last step begun
  Measure measure;
  Timeline timeline;
  Waits waits;
  HostPace pace;
  Arenas arenas;         // memory of steps that follow a schedule
  BufferPool pool;       // memory of steps on demand
  EarlyRows early_rows;  // rows that travel before the launch of a graph

 private:
  void make_entry(schedule::ParameterId id);
};

}  // namespace tessera::runtime
