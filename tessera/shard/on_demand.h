// The trivial schedule: a weight is gathered at its first consume and freed at its last release, compute waiting;
// gradients are reduced at the end of the microbatch. What a step does that has no schedule, or has left it.
#pragma once
#include "tessera/shard/agreement.h"
#include "tessera/shard/buffer_pool.h"
#include "tessera/shard/entry.h"
#include "tessera/shard/measure.h"
#include "tessera/shard/statistics.h"
#include "tessera/shard/timeline.h"
#include "tessera/shard/waits.h"

namespace tessera::shard {

// One rank's. Every call but release and staging is collective.
class OnDemand {
 public:
  OnDemand(Parallel& parallel, Entries& entries, Agreement& agreement, Waits& waits, StepStatistics& statistics,
           Measure& measure, Timeline& timeline)
      : parallel_(parallel),
        entries_(entries),
        agreement_(agreement),
        waits_(waits),
        statistics_(statistics),
        measure_(measure),
        timeline_(timeline),
        pool_(parallel.device) {}

  void gather(Entry& entry, ParameterId id);  // sets its view
  void release(Entry& entry);
  std::byte* staging(Entry& entry);
  void reduce_microbatch();  // what is produced and not yet on its way
  void reduce_replicas();    // what is not yet summed over dp

  std::size_t peak_bytes() const { return pool_.peak_bytes(); }
  void free_unused() { pool_.free_unused(); }

 private:
  // A gradient on its way, in buffers of its own.
  struct Exchange {
    ParameterId id;
    base::Fence summed;
    base::Buffer staging, scratch;
  };
  Recording record_last(ParameterId id);  // what follows from the last event
  Parallel& parallel_;
  Entries& entries_;
  Agreement& agreement_;
  Waits& waits_;
  StepStatistics& statistics_;
  Measure& measure_;
  Timeline& timeline_;
  BufferPool pool_;
  std::vector<Exchange> exchanges_;  // of a microbatch; when its end is left by an exception, lanes still use them
};

// sum_over_replicas, marked in the entry and counted.
base::Fence sum_entry(Entry& entry, Parallel& parallel, const base::Fence& written, StepStatistics& statistics,
                      const base::LaneMark& mark = {});

}  // namespace tessera::shard
