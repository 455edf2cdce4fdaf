#include "tessera/runtime/record/dry_run.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::runtime {

using schedule::EventKind;
using schedule::ParameterId;
using schedule::Pass;
using schedule::PassId;

DryRun::DryRun(const shard::RankLayout& layout, int rank, const shard::ParameterTypes& types,
               const RuntimeOptions& options)
    : own_(std::make_unique<ParameterTable>(layout, rank, types, options)), parameters_(*own_), recorder_(*own_) {}

DryRun::Use& DryRun::use(ParameterId id, int microbatch) {
  parameters_.spec(id);  // throws if the parameter is not registered
  recorder_.check_open(microbatch);
  return uses_.at(microbatch)[static_cast<std::size_t>(id)];
}

void DryRun::begin_step(schedule::StepKind kind, int microbatches) {
  recorder_.begin_step(kind, microbatches);
  uses_.clear();
  waits_.clear();
  received_.clear();
  flops_ = activations_ = {};
}

void DryRun::begin_microbatch(int microbatch) {
  recorder_.begin_microbatch(microbatch);
  uses_[microbatch].resize(static_cast<std::size_t>(parameters_.size()));
}

void DryRun::end_microbatch(int microbatch) {
  for (ParameterId id = 0; id < parameters_.size(); ++id)
    TESSERA_CHECK(use(id, microbatch).users == 0, "end of microbatch {}: '{}' is consumed and not released", microbatch,
                  parameters_.name(id));
  recorder_.end_microbatch(microbatch);
  uses_.erase(microbatch);
}

void DryRun::record(const schedule::Event& event) {
  recorder_.record(event);
  waits_.push_back(recorder_.last());
  received_.push_back(0);
}

void DryRun::record_update(const schedule::Event& event) {
  if (!recorder_.records_updates()) return;
  recorder_.record_update(event);
  waits_.push_back(recorder_.last());
  received_.push_back(0);
}

WeightView DryRun::consume(ParameterId weight, PassId pass) {
  const ParameterId id = parameters_.read_in(pass.pass, weight);
  record(recorder_.weight_event(EventKind::consume, pass, id));
  ++use(id, pass.microbatch).users;
  const shard::ParameterSpec& spec = parameters_.spec(id);
  const shard::ParameterTypes& types = parameters_.types(id);
  WeightView view;
  view.planes[0].type = types.model;
  view.is_decoded = unpacked_to(spec) == shard::Unpacked::decoded;
  if (spec.encoding) view.encoding = *spec.encoding;
  if (is_unpacked(spec)) return view;
  const std::vector<shard::PlaneSpec> planes = planes_of(spec, types);
  for (std::size_t p = 0; p < planes.size(); ++p) view.planes[p].type = planes[p].type;
  if (spec.encoding) view.encoded = quant::Quantized{};
  if (reads_columnwise(spec) && pass.pass == Pass::backward) view.columnwise = quant::Quantized{};
  return view;
}

void DryRun::release(ParameterId weight, PassId pass) {
  const ParameterId id = parameters_.read_in(pass.pass, weight);
  Use& used = use(id, pass.microbatch);
  TESSERA_CHECK(used.users > 0, "'{}' is released more often than consumed", parameters_.name(id));
  record(recorder_.weight_event(EventKind::release, pass, id));
  --used.users;
}

GradientBuffer DryRun::grad_buffer(ParameterId id, int microbatch) {
  TESSERA_CHECK(is_training(), "the gradient of '{}' is requested outside a training step", parameters_.name(id));
  return {nullptr, parameters_.staging_type(id), use(id, microbatch).produced};
}

void DryRun::produce(ParameterId id, int microbatch) {
  record(recorder_.weight_event(EventKind::produce, {microbatch, Pass::backward}, id));
  use(id, microbatch).produced = true;
}

void DryRun::gather_rows(ParameterId id, const shard::RowIds& /*ids*/, void* /*out*/, PassId pass,
                         const std::optional<base::Fence>& /*written*/) {
  record(recorder_.rows_event(pass, id));
}

RowGradient DryRun::grad_rows(ParameterId id, const shard::RowIds& /*ids*/, int /*microbatch*/) {
  return {nullptr, parameters_.staging_type(id), nullptr};
}

void DryRun::publish(std::span<const ParameterId> weights) {
  for (const ParameterId id : parameters_.with_backward_weights(weights))
    record_update(recorder_.weight_event(EventKind::publish, {}, id));
}

void DryRun::reduce_amaxes(std::span<float> amaxes) {
  if (parameters_.ranks() > 1) record_update(recorder_.amaxes_event(static_cast<std::int64_t>(amaxes.size())));
}

void DryRun::reduce_counts(std::span<std::int64_t> counts) {
  if (parameters_.ranks() > 1) record_update(recorder_.counts_event(static_cast<std::int64_t>(counts.size())));
}

Issued DryRun::exchange_matrices(const MatrixExchange& exchange) {
  if (exchange.ranks == 1 || !recorder_.records_updates()) return {};
  record_update(recorder_.matrices_event(exchange));
  return {.done = {}, .event = recorder_.last()};
}

Issued DryRun::issue(const ProgramCollective& collective) {
  if (!collective.is_recorded) return {};
  const CollectiveTraffic traffic = traffic_of(collective, compute_group(collective.domain));
  record(recorder_.collective_event(collective, traffic));
  received_.back() = traffic.received;
  activations_[static_cast<std::size_t>(traffic.format)] += traffic.received;
  return {.done = {}, .event = recorder_.last(), .offset = collective.offset, .bytes = traffic.stored};
}

void DryRun::record_sum(const ScatterSum& sum) {
  record(recorder_.sum_event(sum));
}

void DryRun::wait(const Issued& issued) {
  if (issued.event < 0) return;
  const schedule::Event event = trace()[static_cast<std::size_t>(issued.event)];
  if (schedule::is_piece_op(event.op)) record(recorder_.need_event(event, issued));
  waits_[static_cast<std::size_t>(issued.event)] = recorder_.last();
}

StashId DryRun::stash(std::span<const StashItem> items, PassId pass, StashWay way) {
  const StashId id = recorder_.stashes().add(items, pass, way);
  record(recorder_.stash_event(id));
  return id;
}

void DryRun::fetch(StashId stash, PassId pass) {
  record(recorder_.fetch_event(stash, pass));
}

}  // namespace tessera::runtime
