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

void TimedProgram::compute() {
  const std::size_t event = trace().size();
  TESSERA_CHECK(event < segments_.size(), "a timed step has event {}, expected at most {} events", event,
                segments_.size());
  pass_time(runtime_.parallel(), segments_[event]);
}

void TimedProgram::end_step() {
  both(&Program::end_step);
  in_flight_.clear();
}

// Publishes the weights one by one, each after the time of its update.
void TimedProgram::publish(std::span<const ParameterId> weights) {
  for (const ParameterId id : weights) {
    compute();
    program_.publish(id);
    dry_.publish({&id, 1});
  }
}

runtime::GradientBuffer TimedProgram::grad_buffer(ParameterId weight, int microbatch) {
  const runtime::GradientBuffer gradient = program_.grad_buffer(weight, microbatch);
  const auto elements = static_cast<std::size_t>(parameters().local_compute(weight).size);
  if (!gradient.accumulate) std::memset(gradient.data, 0, elements * quant::size_of(gradient.dtype));
  return dry_.grad_buffer(weight, microbatch);
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
  const int event = dry_.issue(collective).event;
  TESSERA_CHECK(issued.event == event, "a collective is event {} of the step but event {} of its dry run", issued.event,
                event);
  return issued;
}

void TimedProgram::wait(const Issued& issued) {
  if (issued.event < 0) return;
  // Compute runs until the need event.
  if (schedule::is_piece_op(trace()[static_cast<std::size_t>(issued.event)].op)) compute();
  program_.wait(issued);
  dry_.wait(issued);
  in_flight_.erase(issued.event);
}

}  // namespace tessera::bench
