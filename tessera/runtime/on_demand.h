// The executor of steps without a schedule, and of steps that departed from it: a weight is gathered at its first
// consume and freed at its last release. A gradient that is produced once a microbatch is reduced at once, so only one
// such gradient is staged at a time; other gradients are reduced at the end of the microbatch. The host waits for each
// transfer, on a GPU too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/runtime/step_context.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. All calls except release and stage are collective.
class OnDemand {
 public:
  explicit OnDemand(StepContext& step) : step_(step) {}  // `step` outlives it

  void gather(ParameterEntry& entry, schedule::ParameterId id);  // the entry then holds the gathered weight
  void release(ParameterEntry& entry);
  void stage(ParameterEntry& entry);  // the entry then holds a staging
  // Reduces a gradient that is produced and not taken. Throws Error if it was already summed over replicas.
  void reduce(schedule::ParameterId id);
  void reduce_microbatch();  // reduces all gradients that are produced and not taken
  void reduce_replicas();    // sums gradients over replicas, if they are not summed yet

  // The largest number of bytes of gradients, including their rounded copies, that were staged here at the same time.
  std::int64_t staged_peak() const { return staged_peak_; }

 private:
  // A reduction in flight.
  struct Exchange {
    schedule::ParameterId id;
    base::Fence summed;
    base::Buffer staging, scratch;
  };
  shard::Recording record_last(schedule::ParameterId id);  // of work that follows the last event
  void start_reduction(schedule::ParameterId id);          // adds an exchange
  void finish_reductions();                                // waits for all exchanges

  StepContext& step_;
  std::vector<Exchange> exchanges_;  // after an exception, lanes may still use the buffers
  std::int64_t staged_ = 0, staged_peak_ = 0;
};

// Starts the sum of a gradient over replicas, marks the entry as summed and counts the bytes of the sum.
base::Fence sum_entry(ParameterEntry& entry, StepContext& step, const base::Fence& written,
                      const base::LaneMark& mark = {});

}  // namespace tessera::runtime
