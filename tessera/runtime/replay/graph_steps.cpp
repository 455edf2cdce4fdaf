#include "tessera/runtime/replay/graph_steps.h"

#include <set>

#include "tessera/base/error.h"

namespace tessera::runtime {

bool GraphSteps::can_be_graph() const {
  const Recorder& recorder = step_.recorder;
  return recorder.in_step() && recorder.microbatch() < 0 && plans_.current() && plans_.starts_prepared() &&
         recorder.is_training() && !step_.timeline.is_enabled() && step_.options.replay.delay_seed == 0;
}

void GraphSteps::repeat_step() {
  TESSERA_CHECK(can_be_graph(), "repeat_step called for a step that a graph cannot hold");
  // Work of an earlier step without a graph may still be pending. The graph itself waits for gathers and for rows of
  // tables. It does not contain the sums of losses and the comparisons of ranks. The graph and pending work for which
  // it does not wait must not share memory, including the scratch of a lane.
  shard::ParallelGroups& parallel = step_.parallel;
  std::set<base::Lane*> others{&parallel.losses->lane(), &parallel.world->lane(), &parallel.rank_class->lane()};
  for (base::Lane* lane : parallel.lanes_ahead()) others.insert(lane);
  for (base::Lane* lane : parallel.lanes())
    if (!others.contains(lane)) parallel.compute->wait(lane->record());
  plans_.current()->repeat();
  step_.recorder.repeat_step(plans_.current()->trace());
  step_.agreement.post();
}

void GraphSteps::launched(const base::Fence& end, const StepStatistics& statistics) {
  TESSERA_CHECK(!step_.recorder.in_step() && plans_.current(), "launched() called without a captured step");
  step_.statistics = statistics;
  plans_.current()->launched(end);
  step_.early_rows.launched();
  step_.parallel.compute->wait(end);
  step_.agreement.compare_later();
}

}  // namespace tessera::runtime
