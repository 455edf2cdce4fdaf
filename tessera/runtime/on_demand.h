// The executor of steps without a schedule, and of steps that departed from it: a weight is gathered at its first
// consume and freed at its last release, and gradients are reduced at the end of the microbatch. The host waits for
// each transfer, on a GPU too.
#pragma once
#include <cstddef>
#include <vector>

#include "tessera/runtime/step_context.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. All calls except release and stage are collective.
class OnDemand {
 public:
  explicit OnDemand(StepContext& step) : step_(step) {}  // `step` outlives it

  void gather(ParameterEntry& entry, schedule::ParameterId id);  // the entry then holds and shows it
  void release(ParameterEntry& entry);
  void stage(ParameterEntry& entry);  // the entry then holds a staging
  void reduce_microbatch();           // gradients that are produced and not taken
  void reduce_replicas();             // gradients that are not summed over replicas

 private:
  // A reduction in flight.
  struct Exchange {
    schedule::ParameterId id;
    base::Fence summed;
    base::Buffer staging, scratch;
  };
  shard::Recording record_last(schedule::ParameterId id);  // of work that follows the last event

  StepContext& step_;
  std::vector<Exchange> exchanges_;  // of a microbatch; after an exception, lanes may still use the buffers
};

// Starts the sum of a gradient over replicas, notes it in the entry and counts its bytes.
base::Fence sum_entry(ParameterEntry& entry, StepContext& step, const base::Fence& written,
                      const base::LaneMark& mark = {});

}  // namespace tessera::runtime
