// Executes steps without a schedule, and the rest of a step that departed from its schedule. A weight is gathered at
// its first consume event and freed at its last release event. The same holds for its columnwise copy and the events of
// backward passes. A gradient with spec.produced_once is reduced at its
// produce event, so only one such gradient is staged at a time. Other gradients are reduced at the end of the
// microbatch. The host waits for each transfer, also on a GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/runtime/step_context.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. All calls except release, stage and those of columnwise copies are
// collective.
class OnDemand {
 public:
  explicit OnDemand(StepContext& step) : step_(step) {}  // `step` outlives it

  void gather(ParameterEntry& entry, schedule::ParameterId id);  // the entry then owns the gathered weight
  void release(ParameterEntry& entry);
  // Makes the columnwise copy of a weight that is consumed; the entry then owns the copy. Not collective.
  void copy_columnwise(ParameterEntry& entry, schedule::ParameterId id);
  void release_columnwise(ParameterEntry& entry);
  void stage(ParameterEntry& entry);  // the entry then owns a staging buffer
  // Reduces a gradient that is produced and whose reduction is not issued. Throws Error if this step has already issued
  // the sum over replicas, as Replay does after a planned last reduction, also with one replica.
  void reduce(schedule::ParameterId id);
  void reduce_microbatch();  // reduces all gradients that are produced and whose reductions are not issued
  void reduce_replicas();    // sums each gradient over replicas that is not summed yet

  // Returns the largest number of bytes of gradients, including their rounded copies, that OnDemand staged at the same
  // time.
  std::int64_t staged_peak() const { return staged_peak_; }

 private:
  // A reduction in flight.
  struct Exchange {
    schedule::ParameterId id;
    base::Fence summed;
    base::Buffer staging, scratch;
  };
  shard::Recording record_last(schedule::ParameterId id);  // recording of work that the last event caused
  void start_reduction(schedule::ParameterId id);          // adds an entry to exchanges_
  void finish_reductions();                                // waits for all exchanges
  void return_buffer(base::Buffer buffer);

  StepContext& step_;
  std::vector<Exchange> exchanges_;  // kept after an exception, because lanes may still use the buffers
  std::int64_t staged_ = 0, staged_peak_ = 0;
};

// Starts the sum of a gradient over replicas, calls entry.sum_replicas() and counts the received bytes.
base::Fence sum_entry(ParameterEntry& entry, StepContext& step, const base::Fence& written,
                      const base::LaneMark& mark = {});

}  // namespace tessera::runtime
