// Makes compute wait for communication, and measures these waits.
#pragma once
#include "tessera/runtime/record/recorder.h"
#include "tessera/runtime/watch/agreement.h"
#include "tessera/runtime/watch/fence_pairs.h"
#include "tessera/runtime/watch/statistics.h"
#include "tessera/runtime/watch/timeline.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread.
class Waits {
 public:
  Waits(const shard::ParallelGroups& parallel, Agreement& agreement, const Recorder& recorder,
        StepStatistics& statistics, Timeline& timeline)
      : parallel_(parallel), agreement_(agreement), recorder_(recorder), statistics_(statistics), timeline_(timeline) {}

  // Makes later work of compute start after the fence. On a CPU the host waits in this call, and the time counts as
  // exposed. Throws the errors of Agreement::wait.
  void until(const base::Fence& fence, mesh::Transfer transfer, std::span<const schedule::ParameterId> weights = {}) {
    if (!parallel_.is_asynchronous()) return until_done(fence, transfer, weights);
    if (!is_measured_ || parallel_.compute->is_captured()) return parallel_.compute->wait(fence);
    if (fence.done() && !fence.error()) return;  // compute does not have to wait
    const Moment begin = compute_now(parallel_);
    parallel_.compute->wait(fence);
    const Moment end = compute_now(parallel_);
    timeline_.waited(begin, end, transfer, weights);
    on_device_.emplace_back(begin.fence, end.fence);
  }
  // Like until(), for a collective of the program.
  void until_program(const base::Fence& fence) {
    const double before = statistics_.exposed_seconds;
    const std::size_t first = on_device_.size();
    until(fence, mesh::Transfer::program);
    statistics_.exposed_tp_seconds += statistics_.exposed_seconds - before;
    for_program_.insert(for_program_.end(), on_device_.begin() + static_cast<std::ptrdiff_t>(first), on_device_.end());
  }
  // Like until(), but the host waits on every device.
  void until_done(const base::Fence& fence, mesh::Transfer transfer,
                  std::span<const schedule::ParameterId> weights = {}) {
    if (fence.done() && !parallel_.clock) return fence.synchronize();
    const TimedWait waiting(parallel_, statistics_.exposed_seconds, timeline_, transfer, weights);
    agreement_.wait(fence);
  }
  // Waits until the ranks of the group have compared the step so far.
  void for_agreement(comm::Communicator& group) {
    const TimedWait waiting(parallel_, statistics_.exposed_seconds, timeline_, mesh::Transfer::agreement);
    agreement_.compare(group, recorder_.history().hash(), "what a step did");
  }

  // `measured`: whether the waits of compute's lane are measured in this step. On a GPU, each measured wait takes two
  // CUDA events and some microseconds.
  void begin_step(bool measured) {
    on_device_.clear();
    for_program_.clear();
    is_measured_ = measured || timeline_.is_enabled();
  }
  bool is_measured() const { return is_measured_; }
  // Returns the times before and after each wait of compute's lane in this step; empty on a CPU.
  const FencePairs& on_device() const { return on_device_; }
  // Returns the waits of on_device() that are for collectives of the program.
  const FencePairs& for_program() const { return for_program_; }

 private:
  const shard::ParallelGroups& parallel_;
  Agreement& agreement_;
  const Recorder& recorder_;
  StepStatistics& statistics_;
  Timeline& timeline_;
  FencePairs on_device_, for_program_;
  bool is_measured_ = true;
};

}  // namespace tessera::runtime
