#include "tessera/runtime/record/recorder.h"

#include "tessera/base/error.h"
#include "tessera/schedule/check/together.h"

namespace tessera::runtime {

using schedule::EventKind, schedule::Pass, schedule::PassId, schedule::ParameterId;

void Recorder::begin_step(schedule::StepKind kind, int microbatches) {
  check_between_steps("begin_step");
  TESSERA_CHECK(microbatches >= 1, "a step of {} microbatches", microbatches);
  parameters_.close();
  numbers_.begin_step(kind);
  history_.begin_step();
  stashes_.begin_step();
  microbatches_ = microbatches;
  in_step_ = has_step_ = true;
}

void Recorder::check_between_steps(const char* call) const {
  TESSERA_CHECK(!in_step_, "{} inside a step", call);
}

void Recorder::begin_microbatch(int microbatch) {
  TESSERA_CHECK(in_step_, "begin_microbatch outside a step");
  TESSERA_CHECK(microbatch < microbatches_, "microbatch {} of a step of {}", microbatch + 1, microbatches_);
  numbers_.begin_microbatch(microbatch);
}

void Recorder::end_microbatch(int microbatch) {
  check_open(microbatch);
  numbers_.end_microbatch(microbatch);
}

void Recorder::check_microbatches_done() const {
  TESSERA_CHECK(in_step_ && !in_microbatch(), "end_step outside a step or inside a microbatch");
  TESSERA_CHECK(microbatch() + 1 == microbatches_, "the step ends after {} of {} microbatches", microbatch() + 1,
                microbatches_);
}

void Recorder::end_step() {
  check_microbatches_done();
  numbers_.end_step();
  in_step_ = false;
}

void Recorder::repeat_step(const schedule::Trace& trace) {
  for (const schedule::Event& event : trace) history_.add(event);
  in_step_ = false;
}

schedule::Event Recorder::weight_event(EventKind kind, PassId pass, ParameterId id) {
  return numbers_.next(kind, pass, id);
}

schedule::Event Recorder::rows_event(PassId pass, ParameterId id) {
  schedule::Event event = numbers_.next(EventKind::comm, pass, id);
  event.group = schedule::role_name(mesh::Transfer::rows, parameters_.spec(id).domain);
  event.op = schedule::kRowOp;
  event.bytes = parameters_.row_bytes(id);  // the size of a message does not depend on the number of rows that are read
  return event;
}

schedule::Event Recorder::collective_event(const ProgramCollective& collective, const CollectiveTraffic& traffic) {
  schedule::Event event = numbers_.other(EventKind::comm, parameters_.program_group(collective.domain), traffic.op,
                                         traffic.given, collective.pass);
  if (is_piece(collective.kind))
    event.parameter =
        collective.is_for_wgrad ? collective.weight : consumed_weight(collective.weight, collective.pass.pass);
  return event;
}

schedule::Event Recorder::need_event(const schedule::Event& piece, const Issued& issued) {
  schedule::Event event =
      numbers_.other(EventKind::need, piece.group, piece.op, issued.bytes, {piece.microbatch, piece.pass});
  event.parameter = piece.parameter;
  event.offset = issued.offset;
  return event;
}

schedule::Event Recorder::sum_event(const ScatterSum& sum) {
  std::vector<int> ranks(sum.ranks.begin(), sum.ranks.end());
  // Places without a rank come last, so that groups with different numbers of ranks have equal events.
  const shard::ComputeGroup& group = parameters_.compute_group(0);
  for (int place = group.size; place < group.nominal_size; ++place) ranks.push_back(place);
  schedule::Event event =
      numbers_.other(EventKind::sum, parameters_.program_group(0), schedule::sum_op(ranks), 0, sum.pass);
  event.parameter = consumed_weight(sum.weight, sum.pass.pass);
  return event;
}

ParameterId Recorder::consumed_weight(ParameterId weight, Pass pass) const {
  return weight < 0 ? schedule::kNoParameter : parameters_.read_in(pass, weight);
}

schedule::Event Recorder::stash_event(StashId id) {
  const Stash& stash = stashes_.all()[static_cast<std::size_t>(id)];
  return numbers_.other(EventKind::stash, {}, std::string(name_of(stash.way)), stash.bytes(), stash.pass);
}

schedule::Event Recorder::fetch_event(StashId id, PassId pass) {
  const Stash& stash = stashes_.fetch(id, pass);
  return numbers_.other(EventKind::fetch, {}, std::string(name_of(stash.way)), stash.bytes(), pass);
}

schedule::Event Recorder::amaxes_event(std::int64_t count) {
  return numbers_.other(EventKind::comm, schedule::kCastGroup, schedule::kAmaxOp,
                        shard::bytes_of(count, quant::DType::fp32), {});
}

schedule::Event Recorder::counts_event(std::int64_t count) {
  return numbers_.other(EventKind::comm, schedule::kCastGroup, schedule::kCountsOp,
                        shard::bytes_of(count, quant::DType::i64), {});
}

schedule::Event Recorder::matrices_event(const MatrixExchange& exchange) {
  return numbers_.other(EventKind::comm, std::string(name_of(exchange.transfer)), exchange.op, exchange.bytes, {});
}

void Recorder::record(const schedule::Event& event) {
  history_.add(event);
  numbers_.happened(event);
}

void Recorder::record_update(const schedule::Event& event) {
  history_.add(event);
}

}  // namespace tessera::runtime
