// Steps that a captured graph executes (docs/schedule.md). The graph holds everything from begin_step to the last
// publish of a step that follows its schedule; train/step_graph.h captures and launches it.
#pragma once
#include <cstdint>

#include "tessera/runtime/plans.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread.
class GraphSteps {
 public:
  GraphSteps(StepContext& step, Plans& plans) : step_(step), plans_(plans) {}

  // After begin_step: whether a graph can hold this step. The step follows a schedule whose earlier work is in flight,
  // and records no timeline.
  bool can_be_graph() const;
  // The number changes with every new schedule. A graph that was captured with another number can no longer be
  // launched.
  int schedules_made() const { return plans_.made(); }
  // Called directly before a launch: sends the rows that the step reads first, if their ids are known
  // (Program::gather_rows). ids: the same number as in the captured step, in memory that the device can read, valid
  // until the step has finished. Collective over the ranks that store the table.
  void gather_rows(const std::int64_t* ids) { step_.early_rows.gather(ids); }
  // Called after begin_step, if the step can be a graph. Replaces all calls of the step that the graph contains.
  // Compute first waits for what the graph itself does not wait for. Throws Error if the version of a gathered weight
  // is not that of the stored weight.
  void repeat_step();
  // Called after repeat_step, and after the captured step. `end` is the fence of the launch. `statistics` are those of
  // the captured step. Collective.
  void launched(const base::Fence& end, const StepStatistics& statistics);

 private:
  StepContext& step_;
  Plans& plans_;
};

}  // namespace tessera::runtime
