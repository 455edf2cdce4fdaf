// Compute waits for what is under way.
#pragma once
#include "tessera/runtime/agreement.h"
#include "tessera/runtime/fence_pairs.h"
#include "tessera/runtime/statistics.h"
#include "tessera/runtime/timeline.h"

namespace tessera::runtime {

// One rank's. One thread.
class Waits {
 public:
  Waits(const shard::ParallelGroups& parallel, const ParameterEntries& entries, Agreement& agreement,
        StepStatistics& statistics, Timeline& timeline)
      : parallel_(parallel), entries_(entries), agreement_(agreement), statistics_(statistics), timeline_(timeline) {}

  // What compute does next comes after the fence. Where compute is the host, it waits here and the time counts as
  // exposed. Errors: Agreement::wait's.
  void until(const base::Fence& fence, schedule::Activity activity,
             std::span<const schedule::ParameterId> weights = {}) {
    if (!parallel_.is_asynchronous()) return until_done(fence, activity, weights);
    if (!is_measured_ || parallel_.compute->is_captured()) return parallel_.compute->wait(fence);
    if (fence.done() && !fence.error()) return;  // nor is there anything to measure
    const Moment begin = compute_now(parallel_);
    parallel_.compute->wait(fence);
    const Moment end = compute_now(parallel_);
    timeline_.waited(begin, end, activity, weights);
    on_device_.emplace_back(begin.fence, end.fence);
  }
  // The host waits too, on every device.
  void until_done(const base::Fence& fence, schedule::Activity activity,
                  std::span<const schedule::ParameterId> weights = {}) {
    if (fence.done() && !parallel_.clock) return fence.synchronize();
    const Waiting waiting(parallel_, statistics_.exposed_seconds, timeline_, activity, weights);
    agreement_.wait(fence, entries_);
  }
  // For all of `group` to say that they did the same.
  void for_agreement(comm::Communicator& group) {
    const Waiting waiting(parallel_, statistics_.exposed_seconds, timeline_, schedule::Activity::agreement);
    agreement_.compare(group, agreement_.hash(), "what a step did", entries_);
  }

  // measured: waits of compute's lane in this step, by two events each, which cost a GPU some microseconds.
  void begin_step(bool measured) {
    on_device_.clear();
    is_measured_ = measured || timeline_.is_on();
  }
  bool is_measured() const { return is_measured_; }
  // Before and after each wait of compute's lane in this step; none where compute is the host.
  const FencePairs& on_device() const { return on_device_; }

 private:
  const shard::ParallelGroups& parallel_;
  const ParameterEntries& entries_;
  Agreement& agreement_;
  StepStatistics& statistics_;
  Timeline& timeline_;
  FencePairs on_device_;
  bool is_measured_ = true;
};

}  // namespace tessera::runtime
