#include "tessera/runtime/runtime.h"

#include <chrono>
#include <exception>

#include "tessera/schedule/buckets.h"

namespace tessera::runtime {
namespace {

// If a step takes longer than this time, this rank compares its recorded events with those of the other ranks.
constexpr std::chrono::seconds kLongStep{10};

}  // namespace

Runtime::Runtime(shard::ParallelGroups& parallel, shard::ParameterTypes types, const RuntimeOptions& options)
    : exceptions_(std::uncaught_exceptions()),
      step_(parallel, types, options),
      plans_(step_),
      program_(step_, plans_),
      graph_(step_, plans_) {}

// Waits for the pending operations, because they use buffers of this object.
Runtime::~Runtime() {
  if (std::uncaught_exceptions() > exceptions_) abandon();
  step_.parallel.drain();
  if (std::uncaught_exceptions() > exceptions_ || !step_.options.pushes) return;
  try {
    step_.arenas.unshare(step_.parallel);
  } catch (const std::exception&) {
    // A peer has failed and reports its own error.
  }
}

void Runtime::abandon() {
  step_.parallel.cancel();
}

void Runtime::wait_until_idle() {
  step_.recorder.check_between_steps("wait_until_idle");
  for (base::Lane* lane : step_.parallel.lanes()) step_.agreement.wait_on_host(lane->record());
}

PendingStep Runtime::pending() const {
  PendingStep step{.number = step_.recorder.history().step(),
                   .end = step_.parallel.compute->record(),
                   .statistics = step_.statistics,
                   .waits = step_.waits.on_device(),
                   .program_waits = step_.waits.for_program()};
  if (!waits_are_known()) forget_waits(step.statistics);
  return step;
}

bool Runtime::waits_are_known() const {
  // In a recorded step the host waits for on-demand transfers, so device timings would mislead.
  return !step_.parallel.is_asynchronous() || (step_.waits.is_measured() && !step_.statistics.recorded);
}

StepStatistics Runtime::finish(const PendingStep& step) {
  step_.agreement.wait_on_host(step.end, kLongStep);
  step_.agreement.finish_until(step.number);
  StepStatistics statistics = step.statistics;
  statistics.exposed_seconds += seconds_of(step.waits);
  statistics.exposed_tp_seconds += seconds_of(step.program_waits);
  return statistics;
}

StepStatistics Runtime::statistics() const {
  StepStatistics statistics = step_.statistics;
  statistics.exposed_seconds += seconds_of(step_.waits.on_device());
  statistics.exposed_tp_seconds += seconds_of(step_.waits.for_program());
  if (!waits_are_known()) forget_waits(statistics);
  return statistics;
}

std::vector<schedule::ParameterId> Runtime::by_first_use() const {
  const bool is_training = step_.recorder.is_training();
  return schedule::order_of_first_uses(is_training ? trace() : schedule::Trace{}, step_.parameters.weights());
}

const schedule::Schedule* Runtime::schedule(schedule::StepKind kind, int microbatches) const {
  return plans_.schedule(kind, microbatches);
}

ScheduleStatistics Runtime::schedule_statistics() const {
  ScheduleStatistics statistics = plans_.statistics();
  statistics.on_demand_staged_peak_bytes = program_.staged_on_demand();
  return statistics;
}

std::vector<TimelineSpan> Runtime::timeline() const {
  for (comm::Communicator* group : step_.parallel.made(mesh::Transfer::replicas))
    group->lane().record().wait_until_done();
  return step_.timeline.spans();
}

}  // namespace tessera::runtime
