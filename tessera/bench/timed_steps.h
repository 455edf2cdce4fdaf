// Steps whose computing is only time that passes, under a runtime that really moves weights and gradients. What these
// hold counts for nothing.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// One rank's; one thread.
class TimedSteps {
 public:
  virtual ~TimedSteps() = default;
  // A training step with all its publishes. Collective.
  virtual void step(int microbatches) = 0;
  virtual runtime::Runtime& runtime() = 0;
  // By event of the last step: seconds computed before it; and as schedule::Costs has them.
  virtual const std::vector<double>& segments() const = 0;
  virtual const std::vector<int>& comm_waits() const = 0;
};

// `parallel` outlives what is made.
using MakeTimedSteps =
    std::function<std::unique_ptr<TimedSteps>(shard::ParallelGroups& parallel, const runtime::RuntimeOptions& options)>;

// Lets the time pass: on the host's clock where time is virtual, else the thread sleeps.
void pass_time(const shard::ParallelGroups& parallel, double seconds);

}  // namespace tessera::bench
