// Steps that do not compute, but wait for the time that compute would take. The runtime moves real weights and
// gradients. The values of weights and gradients have no meaning.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// One rank's steps; used by one thread.
class TimedSteps {
 public:
  virtual ~TimedSteps() = default;
  // Runs a training step with all its publish events. Collective.
  virtual void step(int microbatches) = 0;
  virtual runtime::Runtime& runtime() = 0;
  // By event of the last step: the seconds of compute before the event, without waits (schedule::Costs).
  virtual const std::vector<double>& segments() const = 0;
  virtual const std::vector<int>& comm_waits() const = 0;
};

// `parallel` must outlive the steps.
using MakeTimedSteps =
    std::function<std::unique_ptr<TimedSteps>(shard::ParallelGroups& parallel, const runtime::RuntimeOptions& options)>;

// Waits for this time. If time is virtual, advances the host's clock; otherwise the thread sleeps.
void pass_time(const shard::ParallelGroups& parallel, double seconds);

}  // namespace tessera::bench
