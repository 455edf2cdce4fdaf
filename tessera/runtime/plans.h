// The schedules of a rank: one for each kind of step and number of microbatches.
//
// The first step of a kind runs on demand and is recorded. When the next step begins, the ranks agree on the recorded
// costs, plan, prove the schedule and compare it; later steps of the kind follow it (docs/schedule.md).
//
// A step departs from its schedule when its next event differs from the planned one. If all ranks depart at the same
// event, the rest of the step runs on demand and the departure is counted. After `departures_before_replan` such steps
// in a row, the next schedule is planned from the last of these steps. If only some ranks depart, Agreement finds the
// difference and the run ends with an error. The run also ends if a training step departs while there are several
// classes of ranks (shard/domain.h), because ranks of other classes would add other gradients.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/runtime/replay.h"
#include "tessera/runtime/step_context.h"

namespace tessera::runtime {

// Totals over all schedules of a rank.
struct ScheduleStatistics {
  int planned = 0;                                                                 // schedules made
  std::int64_t departed_steps = 0, demand_gathers = 0;                             // counted since the first schedule
  std::int64_t gather_arena_bytes = 0, reduce_arena_bytes = 0, scratch_bytes = 0;  // allocated
  std::int64_t gather_peak_bytes = 0, reduce_peak_bytes = 0;  // the largest number of allocated bytes in use
  std::int64_t on_demand_peak_bytes = 0;         // peak bytes of weights, gradients and exchanges on demand
  std::int64_t on_demand_staged_peak_bytes = 0;  // of gradients alone
  std::int64_t transfer_arena_bytes = 0;         // allocated for pieces of activations
  std::string tp_indirect;  // why some tp peers do not write to each other's transfer arenas; as `indirect`
  std::string indirect;     // why some GPUs do not write to each other's arenas; empty where they do, and without GPUs
};

// Belongs to one rank; used by one thread.
class Plans {
 public:
  explicit Plans(StepContext& step) : step_(step) {}  // `step` outlives the plans

  // Called before a step: plans the previous step, including its optimizer events, if that step needs a schedule.
  // Collective.
  void end_step();
  // Called after Recorder::begin_step: chooses the schedule of the step.
  void begin_step();
  // Called after begin_step, when waits are measured. Issues the gathers that the schedule has before the step.
  void prefetch();
  // The schedule that the current step still follows. Null: the rest of the step runs on demand.
  Replay* current() const { return current_; }
  // Whether all prefetches of the schedule were in flight when the step began.
  bool starts_prepared() const { return starts_prepared_; }
  // Called when the step departs from its schedule. event: the next event; null: the end of the microbatch. Transfers
  // in flight are finished: consumed weights stay readable, and produced gradients are reduced with the microbatch.
  void depart(const schedule::Event* event);
  // Called for an optimizer event that is not in the schedule. Prefetched weights are then not used. The step does not
  // count as departed.
  void drop_prefetches() { current_ = nullptr; }

  int made() const { return totals_.planned; }
  // Returns null if the kind of step has no schedule.
  const schedule::Schedule* schedule(schedule::StepKind kind, int microbatches) const;
  ScheduleStatistics statistics() const;
  void count_demand_gathers();  // counts the gathers on demand of a step that had a schedule

 private:
  struct Plan {
    std::unique_ptr<Replay> replay;
    int departures = 0;  // departed steps in a row
  };
  using Key = std::pair<schedule::StepKind, int>;  // kind, microbatches
  Plan& plan_of_step() { return plans_[{step_.recorder.kind(), step_.recorder.microbatches()}]; }
  bool should_plan();
  std::int64_t room() const;
  std::vector<std::string> verify(const std::vector<schedule::ParameterSize>& sizes,
                                  const schedule::Schedule& schedule);
  void compare(const schedule::Schedule& schedule);
  void make_schedule();

  StepContext& step_;
  std::map<Key, Plan> plans_;
  Replay* current_ = nullptr;
  Replay* prepared_ = nullptr;  // gathers for its next step may be in flight
  ScheduleStatistics totals_;
  bool is_open_ = false;  // whether a step has begun that end_step has not planned
  bool starts_prepared_ = false, is_warm_ = false;
};

}  // namespace tessera::runtime
