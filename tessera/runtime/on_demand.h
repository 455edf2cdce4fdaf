// The trivial schedule: a weight is gathered at its first consume and freed at its last release; gradients are reduced
// at the end of the microbatch. The host waits for all of it, also where compute is a GPU's. What a step does that has
// no schedule, or has left it.
#pragma once
#include "tessera/runtime/agreement.h"
#include "tessera/runtime/buffer_pool.h"
#include "tessera/runtime/measure.h"
#include "tessera/runtime/parameter_entry.h"
#include "tessera/runtime/statistics.h"
#include "tessera/runtime/timeline.h"
#include "tessera/runtime/waits.h"

namespace tessera::runtime {

// One rank's. Every call but release and staging is collective.
class OnDemand {
 public:
  OnDemand(shard::ParallelGroups& parallel, ParameterEntries& entries, Agreement& agreement, Waits& waits,
           StepStatistics& statistics, Measure& measure, Timeline& timeline)
      : parallel_(parallel),
        entries_(entries),
        agreement_(agreement),
        waits_(waits),
        statistics_(statistics),
        measure_(measure),
        timeline_(timeline),
        pool_(parallel.device) {}

  void gather(ParameterEntry& entry, schedule::ParameterId id);  // sets its view
  void release(ParameterEntry& entry);
  std::byte* staging(ParameterEntry& entry);
  void reduce_microbatch();  // what is produced and not yet on its way
  void reduce_replicas();    // what is not yet summed over the replicas

  std::size_t peak_bytes() const { return pool_.peak_bytes(); }
  void free_unused() { pool_.free_unused(); }

 private:
  // A gradient on its way, in buffers of its own.
  struct Exchange {
    schedule::ParameterId id;
    base::Fence summed;
    base::Buffer staging, scratch;
  };
  shard::Recording record_last(schedule::ParameterId id);  // what follows from the last event
  shard::ParallelGroups& parallel_;
  ParameterEntries& entries_;
  Agreement& agreement_;
  Waits& waits_;
  StepStatistics& statistics_;
  Measure& measure_;
  Timeline& timeline_;
  BufferPool pool_;
  std::vector<Exchange> exchanges_;  // of a microbatch; when its end is left by an exception, lanes still use them
};

// The sum over replicas, marked in the entry and counted.
base::Fence sum_entry(ParameterEntry& entry, shard::ParallelGroups& parallel, const base::Fence& written,
                      StepStatistics& statistics, const base::LaneMark& mark = {});

}  // namespace tessera::runtime
