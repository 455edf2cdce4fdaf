// Steps that a captured graph executes (docs/schedule.md). The graph contains all work of a step that follows its
// schedule, from begin_step to the last publish event. train/step_graph.h captures and launches the graph.
#pragma once
#include <cstdint>

#include "tessera/runtime/replay/plans.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread.
class GraphSteps {
 public:
  GraphSteps(StepContext& step, Plans& plans) : step_(step), plans_(plans) {}

  // Called after begin_step. Returns whether a graph can execute this step. The step must follow a schedule, all
  // prefetches of the schedule must be in flight, and the step must not record a timeline.
  bool can_be_graph() const;
  // Returns the number of schedules made so far. If the number has changed since a graph was captured, the graph must
  // not be launched.
  int schedules_made() const { return plans_.made(); }
  // Called directly before a launch. Gathers the early rows of the step (early_rows.h). The number of ids is that of
  // the captured step. `ids` is memory that the device can read, and must stay valid until the step has finished.
  // Collective over the ranks that store the table.
  void gather_rows(const std::int64_t* ids) { step_.early_rows.gather(ids); }
  // Called after begin_step, if can_be_graph() is true. Replaces all Program calls of the step, because the graph
  // contains their work. Makes compute wait for earlier work that the graph does not wait for. Throws Error if the
  // version of a gathered weight is not that of the stored weight.
  void repeat_step();
  // Called after each launch: after repeat_step, or after the step that was captured. `end` is the fence of the launch.
  // `statistics` are the statistics of the captured step. Collective.
  void launched(const base::Fence& end, const StepStatistics& statistics);

 private:
  StepContext& step_;
  Plans& plans_;
};

}  // namespace tessera::runtime
