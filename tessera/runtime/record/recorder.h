// Records the events of a rank's steps. Runtime and DryRun share this class, so both have the same events, ordinals and
// checks of the order of calls.
#pragma once
#include <cstdint>
#include <string>

#include "tessera/runtime/collective.h"
#include "tessera/runtime/parameter_table.h"
#include "tessera/runtime/record/event_numbers.h"
#include "tessera/runtime/record/stashes.h"
#include "tessera/runtime/record/step_record.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread.
//
// A caller first gets the event of a call (weight_event, rows_event), executes the call, and then records the event.
// Functions that return an event without a parameter also count the event, so the caller must record it.
class Recorder {
 public:
  explicit Recorder(ParameterTable& parameters) : parameters_(parameters) {}

  // begin_step, end_microbatch and end_step throw Error if they are called out of order.
  void begin_step(schedule::StepKind kind, int microbatches);
  void begin_microbatch(int microbatch);
  void end_microbatch(int microbatch);
  void end_step();
  // Records all events of a step at once and ends the step. Called if a graph executes the step.
  void repeat_step(const schedule::Trace& trace);
  // Throw Error if a call is out of order: a call that is allowed only between steps, a call of a microbatch that is
  // not open, or end_step.
  void check_between_steps(const char* call) const;
  void check_open(int microbatch) const { numbers_.check_open(microbatch); }
  void check_microbatches_done() const;

  schedule::StepKind kind() const { return numbers_.kind(); }  // kind of the last step begun
  bool is_training() const { return kind() == schedule::StepKind::train; }
  int microbatches() const { return microbatches_; }
  // Returns the number of the last microbatch begun, from 0, or -1 if no microbatch has begun.
  int microbatch() const { return numbers_.microbatch(); }
  bool in_step() const { return in_step_; }
  bool in_microbatch() const { return numbers_.in_microbatch(); }  // whether a microbatch is open
  // Whether optimizer events are recorded. True between the end of a training step and the next step.
  bool records_updates() const { return has_step_ && is_training(); }

  schedule::Event weight_event(schedule::EventKind kind, schedule::PassId pass, schedule::ParameterId id);
  schedule::Event rows_event(schedule::PassId pass, schedule::ParameterId id);
  schedule::Event collective_event(const ProgramCollective& collective, const CollectiveTraffic& traffic);
  // The event of a new stash, and the event of its fetch. fetch_event marks the stash as fetched (Stashes::fetch).
  schedule::Event stash_event(StashId id);
  schedule::Event fetch_event(StashId id, schedule::PassId pass);
  // The event of a wait for a piece, whose collective_event is `piece`.
  schedule::Event need_event(const schedule::Event& piece, const Issued& issued);
  schedule::Event sum_event(const ScatterSum& sum);
  schedule::Event amaxes_event(std::int64_t count);
  schedule::Event counts_event(std::int64_t count);
  schedule::Event matrices_event(const MatrixExchange& exchange);

  void record(const schedule::Event& event);         // records an event of a step
  void record_update(const schedule::Event& event);  // records an event of the optimizer, after the step

  const schedule::Trace& trace() const { return history_.trace(); }  // trace of the last step begun
  int last() const { return static_cast<int>(trace().size()) - 1; }  // index of the last event
  const StepHistory& history() const { return history_; }
  Stashes& stashes() { return stashes_; }  // stashes of the last step begun
  const Stashes& stashes() const { return stashes_; }

 private:
  // Returns the parameter that a product with the weight consumes in this pass.
  schedule::ParameterId consumed_weight(schedule::ParameterId weight, schedule::Pass pass) const;

  ParameterTable& parameters_;
  StepHistory history_;
  EventNumbers numbers_;
  Stashes stashes_;
  int microbatches_ = 0;
  bool in_step_ = false, has_step_ = false;
};

}  // namespace tessera::runtime
