#include "tessera/runtime/running_program.h"

#include "tessera/base/error.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/host_time.h"

namespace tessera::runtime {

using schedule::EventKind, schedule::ParameterId, schedule::Pass, schedule::PassId;

void RunningProgram::begin_step(schedule::StepKind kind, int microbatches) {
  step_.recorder.check_between_steps("begin_step");
  plans_.end_step();
  step_.recorder.begin_step(kind, microbatches);
  step_.statistics = {};
  step_.timeline.begin_step();
  for (auto& entry : step_.entries) entry->begin_step();
  plans_.begin_step();
  step_.measure.begin_step();
  step_.waits.begin_step(measures_waits_ || step_.statistics.recorded);
  step_.pace.begin_step(measures_pace_ && step_.parallel.is_asynchronous());
  plans_.prefetch();
}

void RunningProgram::begin_microbatch(int microbatch) {
  const Recorder& recorder = step_.recorder;
  TESSERA_CHECK(!recorder.in_microbatch(),
                "microbatch {} begins while microbatch {} is open, but a running program has one open microbatch",
                microbatch, recorder.microbatch());
  step_.recorder.begin_microbatch(microbatch);
}

void RunningProgram::end_microbatch(int microbatch) {
  Recorder& recorder = step_.recorder;
  recorder.check_open(microbatch);
  for (const auto& entry : step_.entries)
    TESSERA_CHECK(!entry->is_consumed(), "end of microbatch {}: '{}' is consumed and not released", microbatch,
                  entry->name());
  if (plans_.current() && !plans_.current()->ends_microbatch(microbatch)) plans_.depart(nullptr);
  step_.agreement.post();
  if (recorder.is_training() && !plans_.current()) {
    on_demand_.reduce_microbatch();
    step_.measure.passed(step_.waits.on_device());
  }
  recorder.end_microbatch(microbatch);
}

void RunningProgram::end_step() {
  Recorder& recorder = step_.recorder;
  recorder.check_microbatches_done();
  Replay* const replay = plans_.current();
  if (replay) {
    TESSERA_CHECK(replay->is_at_end_of_body(), "the step ends at event {} of its schedule's {}", replay->next(),
                  replay->schedule().body);
    replay->finish();
  }
  if (recorder.is_training()) {
    if (!replay) check_produced();
    fill_unproduced();
    if (!replay) {
      on_demand_.reduce_replicas();
      step_.measure.passed(step_.waits.on_device());
    }
  }
  if (!step_.parallel.is_asynchronous())
    step_.waits.for_agreement(*step_.parallel.rank_class);
  else if (!step_.parallel.compute->is_captured())
    step_.agreement.compare_later();
  for (ParameterId id = 0; id < step_.parameters.size(); ++id) {
    const ParameterEntry& entry = step_.entry(id);
    TESSERA_CHECK(!entry.is_produced(), "'{}': a gradient was produced and not reduced", entry.name());
    // The optimizer writes all weights next, including weights that this step did not use.
    step_.waits.until(entry.parameter.published(), mesh::Transfer::publish, {&id, 1});
  }
  plans_.count_demand_gathers();
  recorder.end_step();
}

// All ranks call this function if the mesh has several classes of ranks. Within a class, the ranks compare events.
// Between classes, only this check shows that all ranks have gradients of the same weights before they are summed over
// replicas.
void RunningProgram::check_produced() {
  if (!step_.parallel.has_classes()) return;
  std::vector<double> some, none;
  for (const auto& entry : step_.entries) {
    some.push_back(entry->parameter.main_grad_written() ? 1 : 0);
    none.push_back(1 - some.back());
  }
  std::vector<double> all = some;
  all.insert(all.end(), none.begin(), none.end());
  step_.agreement.wait(step_.parallel.world->all_reduce(all.data(), static_cast<std::int64_t>(all.size()),
                                                        quant::DType::fp64, comm::ReduceOp::max));
  for (std::size_t i = 0; i < some.size(); ++i)
    TESSERA_CHECK(all[i] + all[some.size() + i] < 2,
                  "the microbatches of a step give '{}' a gradient on some ranks and none on others",
                  step_.entries[i]->name());
}

// If a parameter has no gradient in any microbatch, its gradient is zero. All ranks have the same set of such
// parameters.
void RunningProgram::fill_unproduced() {
  for (auto& entry : step_.entries) {
    shard::ShardedParameter& parameter = entry->parameter;
    if (!parameter.spec.trainable || parameter.main_grad_written()) continue;
    ++step_.statistics.unproduced;
    step_.parallel.kernels().fill(parameter.main_grad.data(), parameter.gradient_type(), 0, parameter.shard_elements());
    entry->sum_replicas();
  }
}

// Records the event. The step departs from its schedule if the schedule has another event next.
void RunningProgram::begin_event(const schedule::Event& event) {
  if (step_.pace.is_measured())
    step_.statistics.waiting_seconds += step_.pace.passed(*step_.parallel.compute, host_seconds(step_.parallel));
  step_.timeline.begin_event(step_.recorder.trace().size());
  if (plans_.current() && !plans_.current()->is_next(event)) plans_.depart(&event);
  step_.recorder.record(event);
  if (!plans_.current())
    step_.measure.event(static_cast<std::size_t>(step_.recorder.last()), step_.statistics, step_.waits.on_device());
}

// Starts the operations that the schedule has after the event.
void RunningProgram::end_event() {
  if (plans_.current())
    plans_.current()->passed();
  else
    step_.measure.passed(step_.waits.on_device());
  step_.timeline.end_event(step_.recorder.trace().size());
}

void RunningProgram::record(const schedule::Event& event) {
  begin_event(event);
  end_event();
}

// Records an event of the optimizer. Returns whether the publish event belongs to the step's trace: weights also change
// outside of steps, for example when a checkpoint is loaded.
bool RunningProgram::record_update(const schedule::Event& event) {
  if (plans_.current() && !plans_.current()->is_next(event)) plans_.drop_prefetches();
  if (plans_.current()) plans_.current()->passed();
  if (!step_.recorder.records_updates()) return false;
  step_.recorder.record_update(event);
  if (plans_.current()) return true;
  step_.measure.event(static_cast<std::size_t>(step_.recorder.last()), step_.statistics, step_.waits.on_device());
  step_.measure.passed(step_.waits.on_device());
  return true;
}

WeightView RunningProgram::consume(ParameterId weight, PassId pass) {
  const ParameterId id = step_.parameters.read_in(pass.pass, weight);
  ParameterEntry& entry = step_.entry(id);
  shard::ShardedParameter& parameter = entry.parameter;
  TESSERA_CHECK(step_.recorder.in_microbatch(), "'{}' is consumed outside a microbatch", entry.name());
  TESSERA_CHECK(!parameter.by_rows, "'{}' is never whole: gather_rows", entry.name());
  begin_event(step_.recorder.weight_event(EventKind::consume, pass, id));
  const bool moves = !entry.materializer.is_resident();
  // A gather waits for the publish event. A weight that stays in place has no gather, so compute waits here.
  if (!moves) step_.waits.until(parameter.published(), mesh::Transfer::publish, {&id, 1});
  if (plans_.current() && moves) plans_.current()->arrive(entry, id);
  if (!plans_.current() && moves && !entry.is_consumed()) on_demand_.gather(entry, id);
  entry.consumed();
  WeightView view;
  // A rank without elements of the weight has no copy.
  if (pass.pass == Pass::backward && reads_columnwise(parameter.spec))
    view.columnwise = entry.has_columnwise() ? consume_columnwise(entry, id) : quant::Quantized{};
  end_event();
  if (is_unpacked(parameter.spec)) {
    view.planes[0] = {entry.view(), parameter.types.model};
    view.is_decoded = unpacked_to(parameter.spec) == shard::Unpacked::decoded;
    view.encoding = *parameter.spec.encoding;
    view.whole = reinterpret_cast<const float*>(parameter.tensor_scale.data());
    return view;
  }
  for (std::size_t p = 0; p < parameter.planes.size(); ++p) {
    const shard::Plane& plane = parameter.planes[p];
    view.planes[p] = {moves ? entry.view() + entry.materializer.offset_of(p) : plane.data.data(), plane.spec.type};
  }
  if (parameter.spec.encoding) {
    const auto plane = [&](std::size_t p) { return static_cast<std::byte*>(const_cast<void*>(view.planes[p].data)); };
    view.encoded = encoded_matrix(parameter, plane(0), parameter.planes.size() > 1 ? plane(1) : nullptr);
    view.encoding = *parameter.spec.encoding;
  }
  return view;
}

// Returns the columnwise copy of a consumed weight. Makes the copy if this is its first user.
quant::Quantized RunningProgram::consume_columnwise(ParameterEntry& entry, ParameterId id) {
  if (plans_.current())
    plans_.current()->arrive_columnwise(entry, id);
  else if (!entry.is_columnwise_consumed())
    on_demand_.copy_columnwise(entry, id);
  entry.columnwise_consumed();
  return entry.columnwise();
}

void RunningProgram::release(ParameterId weight, PassId pass) {
  const ParameterId id = step_.parameters.read_in(pass.pass, weight);
  ParameterEntry& entry = step_.entry(id);
  TESSERA_CHECK(entry.is_consumed(), "'{}' is released more often than consumed", entry.name());
  begin_event(step_.recorder.weight_event(EventKind::release, pass, id));
  if (pass.pass == Pass::backward && entry.has_columnwise() && entry.columnwise_released())
    on_demand_.release_columnwise(entry);
  if (entry.released()) on_demand_.release(entry);
  end_event();
}

GradientBuffer RunningProgram::grad_buffer(ParameterId id, int microbatch) {
  ParameterEntry& entry = step_.entry(id);
  TESSERA_CHECK(!entry.parameter.row_gradients, "'{}' has gradients of rows: expected a call of grad_rows",
                entry.name());
  TESSERA_CHECK(!entry.parameter.spec.produced_once || entry.last_produced() != microbatch,
                "'{}' is declared as produced once per microbatch, but is produced again", entry.name());
  return {staging_of(entry, id, microbatch), entry.reducer.staging_type(), entry.is_produced()};
}

std::byte* RunningProgram::staging_of(ParameterEntry& entry, ParameterId id, int microbatch) {
  TESSERA_CHECK(step_.recorder.in_microbatch() && is_training(),
                "the gradient of '{}' is requested outside a training microbatch", entry.name());
  TESSERA_CHECK(entry.parameter.spec.trainable, "'{}' is frozen and has no gradient", entry.name());
  const schedule::Event produce = step_.recorder.weight_event(EventKind::produce, {microbatch, Pass::backward}, id);
  if (plans_.current() && !plans_.current()->is_next(produce)) plans_.depart(&produce);
  if (entry.staging()) return entry.staging();
  if (entry.parameter.written_by_layers) {
    TESSERA_CHECK(!entry.parameter.main_grad_written(),
                  "'{}' is produced in a second microbatch, but RuntimeOptions::one_microbatch is set", entry.name());
    entry.stage(entry.parameter.main_grad.data());
  } else if (plans_.current())
    entry.stage(plans_.current()->staging(id));
  else
    on_demand_.stage(entry);
  return entry.staging();
}

void RunningProgram::produce(ParameterId id, int microbatch) {
  ParameterEntry& entry = step_.entry(id);
  TESSERA_CHECK(entry.staging(), "'{}' is produced without grad_buffer", entry.name());
  begin_event(step_.recorder.weight_event(EventKind::produce, {microbatch, Pass::backward}, id));
  entry.produced(microbatch);
  if (entry.parameter.written_by_layers)
    entry.written();
  else if (!plans_.current() && entry.parameter.spec.produced_once)
    on_demand_.reduce(id);
  end_event();
}

namespace {

void check_count(const ParameterEntry& entry, const shard::RowIds& ids) {
  const std::int64_t most = entry.parameter.spec.reads.per_microbatch;
  TESSERA_CHECK(ids.count <= most, "'{}': {} rows of at most {} a microbatch", entry.name(), ids.count, most);
}

}  // namespace

comm::Communicator& RunningProgram::rows_group(const ParameterEntry& entry) {
  return step_.parallel.of(entry.domain(), mesh::Transfer::rows);
}

void RunningProgram::gather_rows(ParameterId id, const shard::RowIds& ids, void* out, PassId pass,
                                 const std::optional<base::Fence>& written) {
  ParameterEntry& entry = step_.entry(id);
  TESSERA_CHECK(step_.recorder.in_microbatch(), "rows of '{}' are read outside a microbatch", entry.name());
  TESSERA_CHECK(entry.rows, "'{}' is gathered whole: consume", entry.name());
  check_count(entry, ids);
  const schedule::Event event = step_.recorder.rows_event(pass, id);
  record(event);
  const int place = step_.recorder.last();
  step_.timeline.began(place);
  step_.statistics.count_gathered(entry.format, event.bytes);
  const base::Lane& lane = *step_.parallel.compute;
  const base::Fence compute = step_.parallel.compute->record();
  const bool is_first = pass == PassId{0, Pass::forward} && event.ordinal == 0;
  if (is_first && written && lane.is_captured() && entry.parameter.spec.trainable) {
    step_.early_rows.note(entry, ids);
    return wait({entry.rows->place(entry.parameter, rows_group(entry), ids.count, out, compute), place});
  }
  wait({entry.rows->start(entry.parameter, rows_group(entry), ids, written.value_or(compute), out, compute), place});
}

RowGradient RunningProgram::grad_rows(ParameterId id, const shard::RowIds& ids, int microbatch) {
  ParameterEntry& entry = step_.entry(id);
  TESSERA_CHECK(entry.parameter.spec.trainable, "'{}' is frozen and has no gradient", entry.name());
  const shard::RowReducer* rows = entry.reducer.rows();
  TESSERA_CHECK(rows, "'{}' has a gradient of the whole: grad_buffer", entry.name());
  TESSERA_CHECK(!entry.is_produced(), "'{}': rows are produced twice in a microbatch", entry.name());
  check_count(entry, ids);
  std::byte* staging = staging_of(entry, id, microbatch);
  return {staging, entry.parameter.types.accumulator, rows->find_slots(ids, staging)};
}

void RunningProgram::publish(std::span<const ParameterId> weights) {
  const std::vector<ParameterId> published = step_.parameters.with_backward_weights(weights);
  const std::span<const ParameterId> ids(published);
  for (const ParameterId id : ids)
    TESSERA_CHECK(!step_.entry(id).is_consumed(), "'{}' is published while it is consumed", step_.entry(id).name());
  const base::Fence written = step_.parallel.compute->record();
  for (const ParameterId id : ids) publish_one(id, written);
}

// Issues the exchange of a weight that replicas update in parts, then the gathers that the schedule has at the publish
// event. The checker proves that this order is safe (call_order in schedule/check/together.h).
void RunningProgram::publish_one(ParameterId id, const base::Fence& written) {
  ParameterEntry& entry = step_.entry(id);
  shard::ShardedParameter& parameter = entry.parameter;
  const std::size_t event = step_.recorder.trace().size();
  step_.timeline.begin_event(event);
  const std::int64_t bytes = total_bytes(entry.ways.publish);
  const base::LaneMark mark =
      runtime::record(step_.timeline, step_.recorder.trace(), event, {&id, 1}).mark(mesh::Transfer::publish, bytes);
  parameter.make_version();
  parameter.set_published(
      parameter.splits_state() ? entry.replicas.gather_updates(parameter, step_.parallel, written, mark) : written);
  step_.statistics.count_gathered(entry.format, bytes);
  step_.early_rows.published(entry);
  record_update(step_.recorder.weight_event(EventKind::publish, {}, id));
  step_.timeline.end_event(step_.recorder.trace().size());
}

void RunningProgram::reduce_amaxes(std::span<float> amaxes) {
  step_.recorder.check_between_steps("reduce_amaxes");
  const auto count = static_cast<std::int64_t>(amaxes.size());
  reduce_update(amaxes.data(), count, quant::DType::fp32, comm::ReduceOp::max, step_.recorder.amaxes_event(count));
}

void RunningProgram::reduce_counts(std::span<std::int64_t> counts) {
  step_.recorder.check_between_steps("reduce_counts");
  const auto count = static_cast<std::int64_t>(counts.size());
  reduce_update(counts.data(), count, quant::DType::i64, comm::ReduceOp::sum, step_.recorder.counts_event(count));
}

void RunningProgram::reduce_update(void* data, std::int64_t count, quant::DType type, comm::ReduceOp op,
                                   const schedule::Event& event) {
  TESSERA_CHECK(step_.parallel.casts, "{}: the groups were made without `casts`", to_string(event));
  comm::Communicator& casts = *step_.parallel.casts;
  if (casts.size() == 1) return;
  step_.timeline.begin_event(step_.recorder.trace().size());
  casts.lane().wait(step_.parallel.compute->record());
  const base::Fence reduced = casts.all_reduce(data, count, type, op);
  const bool is_recorded = record_update(event);
  step_.timeline.end_event(step_.recorder.trace().size());
  if (!is_recorded) return step_.waits.until(reduced, mesh::Transfer::program);
  step_.timeline.began(step_.recorder.last());
  wait({reduced, step_.recorder.last()});
}

Issued RunningProgram::exchange_matrices(const MatrixExchange& exchange) {
  step_.recorder.check_between_steps("exchange_matrices");
  TESSERA_CHECK(step_.parallel.matrices, "{}: ParallelGroups::provide_matrices was not called", exchange.op);
  comm::Communicator& group = *step_.parallel.matrices;
  const bool is_event = exchange.ranks > 1;
  if (is_event) step_.timeline.begin_event(step_.recorder.trace().size());
  group.lane().wait(step_.parallel.compute->record());
  Issued issued{.done = exchange.redistribution->run(group, exchange.source, exchange.target, exchange.type)};
  if (!is_event) return issued;
  const bool is_recorded = record_update(step_.recorder.matrices_event(exchange));
  step_.timeline.end_event(step_.recorder.trace().size());
  if (!is_recorded) return issued;
  issued.event = step_.recorder.last();
  step_.timeline.began(issued.event);
  return issued;
}

StashId RunningProgram::stash(std::span<const StashItem> items, PassId pass, StashWay way) {
  const StashId id = step_.recorder.stashes().add(items, pass, way);
  record(step_.recorder.stash_event(id));
  return id;
}

void RunningProgram::fetch(StashId stash, PassId pass) {
  record(step_.recorder.fetch_event(stash, pass));
}

}  // namespace tessera::runtime
