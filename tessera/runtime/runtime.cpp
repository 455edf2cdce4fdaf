#include "tessera/runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/schedule/buckets.h"
#include "tessera/shard/encoded.h"
#include "tessera/shard/make_parameter.h"
#include "tessera/shard/sizes.h"

namespace tessera::runtime {
Runtime::Runtime(shard::ParallelGroups& parallel, shard::ParameterTypes types, const RuntimeOptions& options)
    : parallel_(parallel),
      types_(types),
      options_(options),
      exceptions_(std::uncaught_exceptions()),
      agreement_(parallel),
      measure_(parallel),
      timeline_(parallel),
      waits_(parallel, entries_, agreement_, statistics_, timeline_),
      on_demand_(parallel, entries_, agreement_, waits_, statistics_, measure_, timeline_) {}

// What is under way uses buffers of this object.
Runtime::~Runtime() {
  if (std::uncaught_exceptions() > exceptions_) give_up();
  parallel_.drain();
  if (std::uncaught_exceptions() > exceptions_ || !options_.pushes) return;
  try {
    Arenas::withdraw(parallel_);
  } catch (const std::exception&) {
    // A peer has failed, and says so itself.
  }
}

void Runtime::settle() {
  TESSERA_CHECK(!in_step_, "settle inside a step");
  for (base::Lane* lane : parallel_.lanes()) agreement_.wait_on_host(lane->record(), entries_);
}

void Runtime::give_up() {
  parallel_.cancel();
}

schedule::ParameterId Runtime::add(shard::ParameterSpec spec) {
  TESSERA_CHECK(!in_step_ && step_replays_.empty(), "parameter '{}' is added after the first step began", spec.name);
  TESSERA_CHECK(weights_ < 0, "parameter '{}' is added after the backward weights", spec.name);
  return register_parameter(with_options(std::move(spec), types_, options_));
}

schedule::ParameterId Runtime::register_parameter(shard::ParameterSpec spec) {
  const auto id = static_cast<schedule::ParameterId>(entries_.size());
  TESSERA_CHECK(ids_.emplace(spec.name, id).second, "parameter '{}' is added twice", spec.name);
  const shard::ParameterTypes types = types_of(spec, types_);
  const int domain = spec.domain;
  const shard::Cuts cuts = this->cuts(domain);
  shard::ShardedParameter parameter = make_parameter(std::move(spec), types, cuts, parallel_.place(domain));
  parallel_.provide(parameter, cuts);
  entries_.push_back(std::make_unique<ParameterEntry>(std::move(parameter), parallel_, cuts));
  return id;
}

shard::ShardedParameter& Runtime::parameter(schedule::ParameterId id) {
  return entry(id, "parameter").parameter;
}

std::vector<schedule::ParameterId> Runtime::by_name() const {
  std::vector<schedule::ParameterId> order(static_cast<std::size_t>(weights()));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<schedule::ParameterId>(i);
  std::ranges::sort(order, {}, [this](schedule::ParameterId id) -> const std::string& {
    return entries_[static_cast<std::size_t>(id)]->name();
  });
  return order;
}

std::vector<schedule::ParameterId> Runtime::by_first_use() const {
  return schedule::order_of_first_uses(is_training() ? trace() : schedule::Trace{}, weights());
}

const ParameterEntry& Runtime::entry(schedule::ParameterId id, const char* call) const {
  TESSERA_CHECK(id >= 0 && id < size(), "{}: parameter {} of {}", call, id, size());
  return *entries_[static_cast<std::size_t>(id)];
}

ParameterEntry& Runtime::entry(schedule::ParameterId id, const char* call) {
  return const_cast<ParameterEntry&>(std::as_const(*this).entry(id, call));
}

const shard::ParameterSpec& Runtime::spec(schedule::ParameterId id) const {
  return entry(id, "spec").parameter.spec;
}

const layout::LocalLayout& Runtime::local_compute(schedule::ParameterId id) const {
  return entry(id, "local_compute").parameter.local_compute;
}

bool Runtime::by_rows(schedule::ParameterId id) const {
  return entry(id, "by_rows").parameter.by_rows;
}

void Runtime::begin_step(schedule::StepKind kind, int microbatches) {
  TESSERA_CHECK(!in_step_, "begin_step inside a step");
  TESSERA_CHECK(microbatches >= 1, "a step of {} microbatches", microbatches);
  check_backward_weights();
  end_trace();
  numbers_.begin_step(kind);
  microbatches_ = microbatches;
  in_step_ = trace_open_ = true;
  statistics_ = {};
  agreement_.begin_step();
  timeline_.begin_step();
  for (auto& entry : entries_) {
    entry->parameter.main_grad_written = entry->parameter.row_squares_written = false;
    entry->replicas_summed = false;
  }
  const auto found = step_replays_.find({kind, microbatches});
  replay_ = found != step_replays_.end() ? found->second.replay.get() : nullptr;
  statistics_.recorded = replay_ == nullptr;
  measure_.begin_step();
  waits_.begin_step(measures_waits_ || statistics_.recorded);
  if (prepared_ && prepared_ != replay_) prepared_->drain();
  prepared_ = replay_;
  starts_prepared_ = replay_ && replay_->begin_step();
}

void Runtime::begin_microbatch() {
  TESSERA_CHECK(in_step_ && !numbers_.in_microbatch(), "begin_microbatch outside a step or inside a microbatch");
  TESSERA_CHECK(numbers_.microbatch() + 1 < microbatches_, "microbatch {} of a step of {}", numbers_.microbatch() + 2,
                microbatches_);
  numbers_.begin_microbatch();
}

void Runtime::end_microbatch() {
  TESSERA_CHECK(numbers_.in_microbatch(), "end_microbatch without begin_microbatch");
  for (const auto& entry : entries_)
    TESSERA_CHECK(entry->users == 0, "end of microbatch {}: '{}' is consumed and not released", numbers_.microbatch(),
                  entry->name());
  if (replay_ && !replay_->ends_microbatch(numbers_.microbatch())) depart(nullptr);
  agreement_.post();
  if (is_training() && !replay_) {
    on_demand_.reduce_microbatch();
    measure_.passed(waits_.on_device());
  }
  numbers_.end_microbatch();
}

void Runtime::end_step() {
  TESSERA_CHECK(in_step_ && !numbers_.in_microbatch(), "end_step outside a step or inside a microbatch");
  TESSERA_CHECK(numbers_.microbatch() + 1 == microbatches_, "the step ends after {} of {} microbatches",
                numbers_.microbatch() + 1, microbatches_);
  if (replay_) {
    TESSERA_CHECK(replay_->is_at_end_of_body(), "the step ends at event {} of its schedule's {}", replay_->next(),
                  replay_->schedule().body);
    replay_->finish();
  }
  if (is_training()) {
    if (!replay_) check_produced();
    fill_unproduced();
    if (!replay_) {
      on_demand_.reduce_replicas();
      measure_.passed(waits_.on_device());
    }
  }
  if (!parallel_.is_asynchronous())
    waits_.for_agreement(*parallel_.alike);
  else if (!parallel_.compute->is_captured())
    agreement_.compare_later(entries_);
  for (schedule::ParameterId id = 0; id < size(); ++id) {
    const ParameterEntry& entry = *entries_[static_cast<std::size_t>(id)];
    TESSERA_CHECK(!entry.produced, "'{}': a gradient was produced and not reduced", entry.name());
    // Of weights that this step did not use: they are written next.
    waits_.until(entry.parameter.published, schedule::Activity::publish, {&id, 1});
  }
  if (!statistics_.recorded) totals_.demand_gathers += statistics_.demand_gathers;
  numbers_.end_step();
  in_step_ = false;
}

// Collective over the world where ranks are of several classes. Within a class events are compared; between classes
// only this tells that each has gradients of the same weights, before they are added up over replicas.
void Runtime::check_produced() {
  if (!parallel_.has_classes()) return;
  std::vector<double> some, none;
  for (const auto& entry : entries_) {
    some.push_back(entry->parameter.main_grad_written ? 1 : 0);
    none.push_back(1 - some.back());
  }
  std::vector<double> all = some;
  all.insert(all.end(), none.begin(), none.end());
  agreement_.wait(parallel_.world->all_reduce(all.data(), static_cast<std::int64_t>(all.size()), quant::DType::fp64,
                                              comm::ReduceOp::max),
                  entries_);
  for (std::size_t i = 0; i < entries_.size(); ++i)
    TESSERA_CHECK(all[i] + all[entries_.size() + i] < 2,
                  "the microbatches of a step give '{}' a gradient on some ranks and none on others",
                  entries_[i]->name());
}

// A parameter without a gradient in any microbatch has gradient zero, on every rank alike.
void Runtime::fill_unproduced() {
  for (auto& entry : entries_) {
    shard::ShardedParameter& parameter = entry->parameter;
    if (!parameter.spec.trainable || parameter.main_grad_written) continue;
    ++statistics_.unproduced;
    parallel_.kernels().fill(parameter.main_grad.data(), parameter.types.accumulator, 0, parameter.shard_elements());
    entry->replicas_summed = true;
  }
}

// The event is recorded; where it is not the next of the schedule, the step leaves it.
void Runtime::happens(const schedule::Event& event) {
  timeline_.begin_event(trace().size());
  if (replay_ && !replay_->is_next(event)) depart(&event);
  agreement_.add(event);
  if (!replay_) measure_.event(trace().size() - 1, statistics_, waits_.on_device());
  numbers_.happened(event);
}

// What follows from the event is under way, and the program goes on.
void Runtime::passed() {
  if (replay_) replay_->passed();
  if (!replay_) measure_.passed(waits_.on_device());
  timeline_.end_event(trace().size());
}

// From here to the end of the step everything is on demand. Nothing that the schedule had under way is lost: what is
// consumed stays readable in its arena, what is produced is reduced with the microbatch. happens: absent at the end of
// a microbatch.
void Runtime::depart(const schedule::Event* happens) {
  if (in_step_ && is_training() && parallel_.has_classes()) {
    const std::vector<std::string> names = names_of(entries_);
    throw Error(
        "a training step leaves its schedule at event {}: got '{}', expected '{}': ranks of other classes, which "
        "follow theirs, would add other gradients",
        trace().size(), happens ? to_string(*happens, names) : "the end of the microbatch", replay_->next_event(names));
  }
  if (in_step_) {
    statistics_.departed = true;
    ++totals_.departed_steps;
    ++step_replays_.at({numbers_.kind(), microbatches_}).departures;
  }
  replay_->drain();
  replay_ = nullptr;
}

WeightView Runtime::consume(schedule::ParameterId weight, schedule::Pass pass) {
  const schedule::ParameterId id = read_in(pass, weight);
  ParameterEntry& entry = this->entry(id, "consume");
  TESSERA_CHECK(numbers_.in_microbatch(), "'{}' is consumed outside a microbatch", entry.name());
  TESSERA_CHECK(!entry.parameter.by_rows, "'{}' is never whole: gather_rows", entry.name());
  happens(numbers_.next(schedule::EventKind::consume, pass, id));
  const bool moves = !entry.materializer.is_resident();
  // Weights that stay have no gather that would wait.
  if (!moves) waits_.until(entry.parameter.published, schedule::Activity::publish, {&id, 1});
  if (replay_ && moves) replay_->arrive(entry, id);
  if (!replay_ && moves && entry.users == 0) on_demand_.gather(entry, id);
  ++entry.users;
  passed();
  WeightView view;
  if (is_unpacked(entry.parameter.spec)) {
    view.planes[0] = {entry.view, entry.parameter.types.model};
    return view;
  }
  for (std::size_t p = 0; p < entry.parameter.planes.size(); ++p) {
    const shard::Plane& plane = entry.parameter.planes[p];
    view.planes[p] = {moves ? entry.view + entry.materializer.offset_of(p) : plane.data.data(), plane.spec.type};
  }
  if (entry.parameter.spec.encoding) {
    const auto plane = [&](std::size_t p) { return static_cast<std::byte*>(const_cast<void*>(view.planes[p].data)); };
    view.encoded = encoded_matrix(entry.parameter, plane(0), entry.parameter.planes.size() > 1 ? plane(1) : nullptr);
    view.encoding = *entry.parameter.spec.encoding;
  }
  return view;
}

void Runtime::wait(const Issued& issued) {
  const double before = statistics_.exposed_seconds;
  const auto first = static_cast<std::ptrdiff_t>(waits_.on_device().size());
  waits_.until(issued.done, schedule::Activity::comm);
  if (issued.event < 0) return;
  const FencePairs& waits = waits_.on_device();
  if (!replay_)
    measure_.waited(issued.event, static_cast<int>(trace().size()) - 1, statistics_.exposed_seconds - before,
                    {waits.begin() + first, waits.end()});
  timeline_.finished(issued.event, trace()[static_cast<std::size_t>(issued.event)]);
}

void Runtime::release(schedule::ParameterId weight, schedule::Pass pass) {
  const schedule::ParameterId id = read_in(pass, weight);
  ParameterEntry& entry = this->entry(id, "release");
  TESSERA_CHECK(entry.users > 0, "'{}' is released more often than consumed", entry.name());
  happens(numbers_.next(schedule::EventKind::release, pass, id));
  if (--entry.users == 0) on_demand_.release(entry);
  passed();
}

GradientBuffer Runtime::grad_buffer(schedule::ParameterId id) {
  ParameterEntry& entry = this->entry(id, "grad_buffer");
  TESSERA_CHECK(!entry.parameter.by_rows, "'{}' has gradients of rows: grad_rows", entry.name());
  TESSERA_CHECK(!entry.produced || !entry.parameter.spec.produced_once,
                "'{}' is said to be produced once a microbatch, and is produced again", entry.name());
  return {staging_of(entry, id), entry.reducer.staging_type(), entry.produced};
}

std::byte* Runtime::staging_of(ParameterEntry& entry, schedule::ParameterId id) {
  TESSERA_CHECK(numbers_.in_microbatch() && is_training(),
                "the gradient of '{}' is asked for outside a training microbatch", entry.name());
  TESSERA_CHECK(entry.parameter.spec.trainable, "'{}' is frozen and has no gradient", entry.name());
  const schedule::Event produce = numbers_.next(schedule::EventKind::produce, schedule::Pass::backward, id);
  if (replay_ && !replay_->is_next(produce)) depart(&produce);
  if (!entry.staging) entry.staging = replay_ ? replay_->staging(id) : on_demand_.staging(entry);
  return entry.staging;
}

void Runtime::produce(schedule::ParameterId id) {
  ParameterEntry& entry = this->entry(id, "produce");
  TESSERA_CHECK(entry.staging, "'{}' is produced without grad_buffer", entry.name());
  happens(numbers_.next(schedule::EventKind::produce, schedule::Pass::backward, id));
  entry.produced = true;
  passed();
}

void Runtime::publish(std::span<const schedule::ParameterId> weights) {
  const std::vector<schedule::ParameterId> published = with_backward_weights(weights);
  const std::span<const schedule::ParameterId> ids(published);
  for (const schedule::ParameterId id : ids) {
    const ParameterEntry& entry = this->entry(id, "publish");
    TESSERA_CHECK(entry.users == 0, "'{}' is published while it is consumed", entry.name());
  }
  timeline_.begin_event(trace().size());
  const base::Fence written = parallel_.compute->record();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ParameterEntry& entry = this->entry(ids[i], "publish");
    shard::ShardedParameter& parameter = entry.parameter;
    const shard::Recording recording = record(timeline_, trace(), trace().size() + i, ids.subspan(i, 1));
    const base::LaneMark mark = recording.mark(schedule::Activity::publish, total_bytes(entry.ways.publish));
    ++parameter.version;
    parameter.published =
        parameter.splits_state() ? entry.replicas.gather_updates(parameter, parallel_, written, mark) : written;
    statistics_.count_gathered(entry.format, total_bytes(entry.ways.publish));
    if (&entry == early_rows_.table) rows_published(entry);
  }
  for (const schedule::ParameterId id : ids)
    happens_behind(numbers_.next(schedule::EventKind::publish, schedule::Pass::forward, id));
  timeline_.end_event(trace().size());
}

void Runtime::reduce_amaxes(std::span<float> amaxes) {
  TESSERA_CHECK(!in_step_, "amaxes of whole weights are reduced inside a step");
  TESSERA_CHECK(parallel_.casts, "amaxes of whole weights are needed, and the groups were made without `casts`");
  comm::Communicator& casts = *parallel_.casts;
  const auto count = static_cast<std::int64_t>(amaxes.size());
  if (casts.size() == 1) return;
  timeline_.begin_event(trace().size());
  casts.lane().wait(parallel_.compute->record());
  const base::Fence reduced = casts.all_reduce(amaxes.data(), count, quant::DType::fp32, comm::ReduceOp::max);
  const bool is_recorded =
      happens_behind(numbers_.other(schedule::EventKind::comm, schedule::kCastGroup, schedule::kAmaxOp,
                                    shard::bytes_of(count, quant::DType::fp32), schedule::Pass::forward));
  timeline_.end_event(trace().size());
  if (is_recorded) timeline_.began(static_cast<int>(trace().size()) - 1);
  if (is_recorded) return wait({reduced, static_cast<int>(trace().size()) - 1});
  waits_.until(reduced, schedule::Activity::comm);
}

// An event of the optimizer, behind the body. Returns whether it is one of the step's trace.
bool Runtime::happens_behind(const schedule::Event& event) {
  // Beyond the optimizer's events (a checkpoint is loaded, say) weights change outside every step.
  if (replay_ && !replay_->is_next(event)) replay_ = nullptr;
  if (replay_) replay_->passed();
  if (!trace_open_ || !is_training()) return false;
  agreement_.add(event);
  if (replay_) return true;
  measure_.event(trace().size() - 1, statistics_, waits_.on_device());
  measure_.passed(waits_.on_device());
  return true;
}

int Runtime::comm(const std::string& group, const std::string& op, std::int64_t bytes, schedule::Pass pass) {
  record_comm(schedule::EventKind::comm, group, op, bytes, pass);
  timeline_.began(static_cast<int>(trace().size()) - 1);
  return static_cast<int>(trace().size()) - 1;
}

Issued Runtime::issue(const ProgramCollective& collective) {
  const CollectiveTraffic traffic = traffic_of(collective, parallel_.compute_group(collective.domain));
  int event = -1;
  if (collective.is_recorded) {
    event = comm(program_name(parallel_.domains[static_cast<std::size_t>(collective.domain)]), traffic.op,
                 traffic.given, collective.pass);
    statistics_.activations_by_format[static_cast<std::size_t>(traffic.format)] += traffic.received;
  }
  comm::Communicator& group = parallel_.program(collective.domain);
  if (parallel_.is_asynchronous()) group.lane().wait(parallel_.compute->record());
  const std::vector<std::int64_t> counts(collective.counts.begin(), collective.counts.end());
  switch (collective.kind) {
    case ProgramCollectiveKind::all_gather:
      return {group.all_gather(collective.in, collective.out, counts, collective.type), event};
    case ProgramCollectiveKind::reduce_scatter:
      return {group.reduce_scatter(collective.in, collective.out, counts, collective.type), event};
    case ProgramCollectiveKind::all_reduce_sum:
      return {group.all_reduce(collective.out, counts.front(), collective.type, comm::ReduceOp::sum), event};
    case ProgramCollectiveKind::all_reduce_max:
      return {group.all_reduce(collective.out, counts.front(), collective.type, comm::ReduceOp::max), event};
  }
  throw Error("a collective of an unknown kind");
}

void Runtime::stash(std::int64_t bytes, schedule::Pass pass, std::string_view way) {
  record_comm(schedule::EventKind::stash, {}, std::string(way), bytes, pass);
}

void Runtime::fetch(std::int64_t bytes, schedule::Pass pass, std::string_view way) {
  record_comm(schedule::EventKind::fetch, {}, std::string(way), bytes, pass);
}

void Runtime::record_comm(schedule::EventKind kind, const std::string& group, const std::string& op, std::int64_t bytes,
                          schedule::Pass pass) {
  happens(numbers_.other(kind, group, op, bytes, pass));
  passed();
}

// The step and the publishes behind it are over: plan it if it has no schedule that it follows.
void Runtime::end_trace() {
  if (!std::exchange(trace_open_, false) || !options_.scheduled) return;
  StepReplay& step_replay = step_replays_[{numbers_.kind(), microbatches_}];
  if (step_replay.replay && !statistics_.departed) step_replay.departures = 0;
  // Classes of ranks plan their steps together: one alone does not plan again.
  if (step_replay.replay && (step_replay.departures < options_.patience || parallel_.has_classes())) return;
  if (!is_worth_planning()) return;
  agreement_.wait_on_host(parallel_.compute->record(), entries_);  // memory that steps use may be given back
  make_schedule();
}

const schedule::Schedule* Runtime::schedule(schedule::StepKind kind, int microbatches) const {
  const auto found = step_replays_.find({kind, microbatches});
  return found == step_replays_.end() || !found->second.replay ? nullptr : &found->second.replay->schedule();
}

ScheduleStatistics Runtime::schedule_statistics() const {
  ScheduleStatistics statistics = totals_;
  statistics.gather_arena_bytes = static_cast<std::int64_t>(arenas_.gather.size());
  statistics.reduce_arena_bytes = static_cast<std::int64_t>(arenas_.reduce.size());
  statistics.scratch_bytes = static_cast<std::int64_t>(arenas_.scratch.size());
  statistics.gather_peak_bytes = arenas_.gather_peak;
  statistics.reduce_peak_bytes = arenas_.reduce_peak;
  statistics.on_demand_peak_bytes = static_cast<std::int64_t>(on_demand_.peak_bytes());
  return statistics;
}

std::vector<TimelineSpan> Runtime::timeline() const {
  for (comm::Communicator* group : parallel_.made(shard::Via::replicas)) {
    const base::Fence exchanged = group->lane().record();
    while (!exchanged.wait_for(std::chrono::seconds(1))) continue;  // every operation has a time limit of its own
  }
  return timeline_.spans();
}

std::vector<schedule::ParameterSize> Runtime::sizes() const {
  std::vector<schedule::ParameterSize> sizes;
  for (const auto& entry : entries_) {
    const shard::ShardedParameter& parameter = entry->parameter;
    sizes.push_back(parameter_size(parameter.spec, parameter.layouts, parameter.types, cuts(parameter.spec.domain)));
  }
  return sizes;
}

}  // namespace tessera::runtime
