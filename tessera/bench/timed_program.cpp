#include "tessera/bench/timed_program.h"

#include <cstring>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/bench/timed_steps.h"

namespace tessera::bench {

using runtime::ProgramCollective, runtime::ProgramCollectiveKind, runtime::Issued;
using schedule::ParameterId, schedule::PassId;

namespace {

base::Buffer zeros(std::int64_t bytes) {
  base::Buffer buffer(static_cast<std::size_t>(bytes));
  buffer.fill_zero();
  return buffer;
}

}  // namespace

// After an error, collectives may still be in flight.
TimedProgram::~TimedProgram() {
  for (const auto& [event, transfer] : in_flight_) transfer.done.wait_until_done();
}

// Waits for the compute time that precedes the next event of the step.
void TimedProgram::compute() {
  const std::size_t event = trace().size();
  TESSERA_CHECK(event < segments_.size(), "a timed step has event {}, expected at most {} events", event,
                segments_.size());
  pass_time(runtime_.parallel(), segments_[event]);
}

void TimedProgram::begin_step(schedule::StepKind kind, int microbatches) {
  program_.begin_step(kind, microbatches);
  DryRun::begin_step(kind, microbatches);
}

void TimedProgram::begin_microbatch(int microbatch) {
  program_.begin_microbatch(microbatch);
  DryRun::begin_microbatch(microbatch);
}

void TimedProgram::end_microbatch(int microbatch) {
  program_.end_microbatch(microbatch);
  DryRun::end_microbatch(microbatch);
}

void TimedProgram::end_step() {
  program_.end_step();
  DryRun::end_step();
  in_flight_.clear();
}

// Publishes the weights one by one, each after the time of its update.
void TimedProgram::publish(std::span<const ParameterId> weights) {
  for (const ParameterId id : weights) {
    compute();
    program_.publish(id);
    DryRun::publish({&id, 1});
  }
}

void TimedProgram::reduce_amaxes(std::span<float> amaxes) {
  compute();
  program_.reduce_amaxes(amaxes);
  DryRun::reduce_amaxes(amaxes);
}

void TimedProgram::reduce_counts(std::span<std::int64_t> counts) {
  compute();
  program_.reduce_counts(counts);
  DryRun::reduce_counts(counts);
}

runtime::WeightView TimedProgram::consume(ParameterId weight, PassId pass) {
  compute();
  program_.consume(weight, pass);
  return DryRun::consume(weight, pass);
}

void TimedProgram::release(ParameterId weight, PassId pass) {
  compute();
  program_.release(weight, pass);
  DryRun::release(weight, pass);
}

runtime::GradientBuffer TimedProgram::grad_buffer(ParameterId weight, int microbatch) {
  const runtime::GradientBuffer gradient = program_.grad_buffer(weight, microbatch);
  const auto elements = static_cast<std::size_t>(parameters().local_compute(weight).size);
  if (!gradient.accumulate) std::memset(gradient.data, 0, elements * quant::size_of(gradient.dtype));
  return DryRun::grad_buffer(weight, microbatch);
}

void TimedProgram::produce(ParameterId weight, int microbatch) {
  compute();
  program_.produce(weight, microbatch);
  DryRun::produce(weight, microbatch);
}

void TimedProgram::gather_rows(ParameterId weight, const shard::RowIds& /*ids*/, void* /*out*/, PassId /*pass*/,
                               const std::optional<base::Fence>& /*written*/) {
  TESSERA_CHECK(false, "rows of '{}' are read by index, which a timed step does not support",
                parameters().name(weight));
}

Issued TimedProgram::issue(const ProgramCollective& collective) {
  if (!collective.is_recorded) return {};
  compute();
  const std::span<const std::int64_t> counts = collective.counts;
  const auto size = static_cast<std::int64_t>(quant::size_of(collective.type));
  const std::int64_t all = size * std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const bool gathers =
      collective.kind == ProgramCollectiveKind::all_gather || collective.kind == ProgramCollectiveKind::gather_piece;
  const bool is_cut = gathers || collective.kind == ProgramCollectiveKind::reduce_scatter ||
                      collective.kind == ProgramCollectiveKind::scatter_piece;
  const std::int64_t own = is_cut ? size * counts[static_cast<std::size_t>(group_rank(collective.domain))] : 0;
  InFlight memory{.in = zeros(gathers || !is_cut ? own : all), .out = zeros(gathers || !is_cut ? all : own)};
  ProgramCollective real = collective;
  real.in = memory.in.data();
  real.out = memory.out.data();
  Issued issued = program_.issue(real);
  memory.done = issued.done;
  in_flight_.emplace(issued.event, std::move(memory));
  const int event = DryRun::issue(collective).event;
  TESSERA_CHECK(issued.event == event, "a collective is event {} of the step but event {} of its dry run", issued.event,
                event);
  return issued;
}

void TimedProgram::wait(const Issued& issued) {
  if (issued.event < 0) return;
  // Compute runs until the need event.
  if (schedule::is_piece_op(trace()[static_cast<std::size_t>(issued.event)].op)) compute();
  program_.wait(issued);
  DryRun::wait(issued);
  in_flight_.erase(issued.event);
}

void TimedProgram::record_sum(const runtime::ScatterSum& sum) {
  compute();
  program_.record_sum(sum);
  DryRun::record_sum(sum);
}

runtime::StashId TimedProgram::stash(std::span<const runtime::StashItem> items, PassId pass, runtime::StashWay way) {
  compute();
  program_.stash(items, pass, way);
  return DryRun::stash(items, pass, way);  // both programs have the same stashes
}

void TimedProgram::fetch(runtime::StashId stash, PassId pass) {
  compute();
  program_.fetch(stash, pass);
  DryRun::fetch(stash, pass);
}

void TimedProgram::count_product(quant::Format format, quant::ProductKernel kernel, std::int64_t flops) {
  program_.count_product(format, kernel, flops);
  DryRun::count_product(format, kernel, flops);
}

}  // namespace tessera::bench
