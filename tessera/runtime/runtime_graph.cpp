// Steps that a graph carries out (docs/schedule.md).
#include <set>

#include "tessera/base/error.h"
#include "tessera/runtime/runtime.h"

namespace tessera::runtime {

bool Runtime::can_be_graph() const {
  return in_step_ && numbers_.microbatch() < 0 && replay_ && starts_prepared_ && is_training() && !timeline_.is_on() &&
         options_.replay.delay_seed == 0;
}

void Runtime::repeat_step() {
  TESSERA_CHECK(can_be_graph(), "repeat_step called for a step that a graph cannot hold");
  // What a step without a graph may have left. For gathers and rows a graph waits itself, and it has nothing of where
  // losses are summed and of where the ranks compare what they did. A graph and what it does not wait
  // for must share nothing, a lane's scratch included.
  std::set<base::Lane*> others{&parallel_.losses->lane(), &parallel_.world->lane(), &parallel_.alike->lane()};
  for (base::Lane* lane : parallel_.lanes_ahead()) others.insert(lane);
  for (base::Lane* lane : parallel_.lanes())
    if (!others.contains(lane)) parallel_.compute->wait(lane->record());
  replay_->repeat();
  for (const schedule::Event& event : replay_->trace()) agreement_.add(event);
  agreement_.post();
  in_step_ = false;
}

void Runtime::launched(const base::Fence& end, const StepStatistics& statistics) {
  TESSERA_CHECK(!in_step_ && replay_, "a graph is launched that is no step");
  statistics_ = statistics;
  replay_->launched(end);
  early_rows_.after = early_rows_.may_begin;
  parallel_.compute->wait(end);
  agreement_.compare_later(entries_);
}

}  // namespace tessera::runtime
