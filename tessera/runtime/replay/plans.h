// Makes and stores a rank's schedules. Each kind of step and each number of microbatches has its own schedule.
//
// The first step of a kind runs on demand and is recorded. When the next step begins, the ranks agree on the recorded
// costs. Each rank then plans a schedule and proves that it is correct, and the ranks compare their schedules. Later
// steps of this kind follow the schedule (docs/schedule.md). A training step without publish events is not used for a
// plan, nor is a GPU's first step if a budget must be chosen; the next step of the kind is then recorded instead.
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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/runtime/replay/replay.h"
#include "tessera/runtime/step_context.h"

namespace tessera::runtime {

// Totals over all schedules of a rank.
struct ScheduleStatistics {
  int planned = 0;  // number of schedules made
  // Departed steps, and gathers on demand, since the first schedule.
  std::int64_t departed_steps = 0, demand_gathers = 0;
  std::int64_t gather_arena_bytes = 0, reduce_arena_bytes = 0, scratch_bytes = 0;  // allocated bytes
  // Bytes that the schedule of training steps uses; nullopt without such a schedule. Evaluations use the same arenas,
  // and their schedule may be larger.
  struct Arenas {
    std::int64_t gather = 0, reduce = 0, scratch = 0;
  };
  std::optional<Arenas> train_arenas = std::nullopt;
  std::int64_t gather_peak_bytes = 0, reduce_peak_bytes = 0;  // largest number of these bytes that a schedule used
  std::int64_t on_demand_peak_bytes = 0;         // peak bytes of weights, gradients and exchanges on demand
  std::int64_t on_demand_staged_peak_bytes = 0;  // peak bytes of gradients on demand
  std::int64_t transfer_arena_bytes = 0;         // allocated bytes for pieces of activations
  // Reason why some tp peers do not write to each other's transfer arenas; empty in the cases of `indirect`.
  std::string tp_indirect;
  std::string indirect;  // reason why some GPUs do not write to each other's arenas; empty if all GPUs do, and on CPUs
};

// Belongs to one rank; used by one thread.
class Plans {
 public:
  explicit Plans(StepContext& step) : step_(step) {}  // `step` outlives the plans

  // Called before a step. If the previous step needs a schedule, plans it from this step's trace, including the
  // optimizer's events. Collective.
  void end_step();
  // Called after Recorder::begin_step: chooses the schedule of the step.
  void begin_step();
  // Called after begin_step, when the measurement of waits has begun. Issues the schedule's prefetches that are not in
  // flight.
  void prefetch();
  // Returns the executor of the schedule that the current step follows. Null: the rest of the step runs on demand.
  Replay* current() const { return current_; }
  // Returns whether all prefetches of the schedule were in flight when the step began.
  bool starts_prepared() const { return starts_prepared_; }
  // Called when the step departs from its schedule. `event` is the event that the schedule does not have at this place;
  // null means the end of the microbatch. Makes compute wait for transfers in flight. Consumed weights stay readable;
  // other gathered weights are gathered again. Gradients not yet reduced are reduced at the end of the microbatch.
  void depart(const schedule::Event* event);
  // Called for an optimizer event that is not next in the schedule. Ends the issue of prefetches; the next step uses
  // those in flight if their versions are current (Replay::begin_step). The step does not count as departed.
  void drop_prefetches() { current_ = nullptr; }

  int made() const { return totals_.planned; }
  // Returns the schedule of steps of this kind, or null if they have no schedule.
  const schedule::Schedule* schedule(schedule::StepKind kind, int microbatches) const;
  ScheduleStatistics statistics() const;
  void count_demand_gathers();  // adds the gathers on demand of a step that has a schedule to the totals

 private:
  struct Plan {
    std::unique_ptr<Replay> replay;
    int departures = 0;  // number of departed steps in a row
  };
  using Key = std::pair<schedule::StepKind, int>;  // kind of step, number of microbatches
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
  Replay* prepared_ = nullptr;  // the executor whose gathers for its next step may be in flight
  ScheduleStatistics totals_;
  bool is_open_ = false;  // whether a step has begun that end_step has not planned
  bool starts_prepared_ = false, is_warm_ = false;
};

}  // namespace tessera::runtime
