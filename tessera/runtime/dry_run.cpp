#include "tessera/runtime/dry_run.h"

#include "tessera/base/error.h"
#include "tessera/schedule/check/together.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/sizes.h"

namespace tessera::runtime {

using schedule::EventKind;
using schedule::ParameterId;
using schedule::Pass;

DryRun::DryRun(const shard::RankLayout& layout, int rank, shard::ParameterTypes types, const RuntimeOptions& options)
    : world_size_(layout.mesh.world_size()), types_(types), options_(options) {
  TESSERA_CHECK(!layout.domains.empty(), "a mesh without a domain");
  for (const shard::Domain& domain : layout.domains) {
    cuts_.push_back(with_options(cuts_of(layout.mesh, domain, rank), options));
    places_.push_back(place_of(layout.mesh, domain, rank));
    groups_.push_back(compute_group_of(layout.mesh, domain, rank));
    group_names_.push_back(program_name(domain));
  }
}

ParameterId DryRun::add(shard::ParameterSpec spec) {
  TESSERA_CHECK(weights_ < 0, "parameter '{}' is added after the backward weights", spec.name);
  return register_parameter(with_options(std::move(spec), types_, options_));
}

void DryRun::add_backward_weights() {
  TESSERA_CHECK(weights_ < 0, "backward weights are added twice");
  weights_ = static_cast<int>(specs_.size());
  for (ParameterId id = 0; id < weights_; ++id)
    if (spec(id).backward)
      known(id).backward_weight = register_parameter(shard::backward_weight(shard::ParameterSpec(spec(id))));
}

ParameterId DryRun::register_parameter(shard::ParameterSpec spec) {
  const auto id = static_cast<ParameterId>(specs_.size());
  TESSERA_CHECK(names_.insert(spec.name).second, "parameter '{}' is added twice", spec.name);
  const shard::ParameterTypes types = types_of(spec, types_);
  const shard::Cuts cuts = cuts_.at(static_cast<std::size_t>(spec.domain));
  const shard::ParameterLayouts layouts = layouts_of(spec);
  Known known{.staging = types.accumulator};
  known.by_rows = exchanges_rows(spec, layouts, types, cuts);
  if (known.by_rows)
    known.row_bytes = messages_of(spec, layouts, cuts.parts).exchanged(types.model);
  else
    known.staging = staging_type(spec, types, sums_compute(spec, layouts));
  specs_.push_back(std::move(spec));
  known_.push_back(known);
  return id;
}

std::vector<ParameterId> DryRun::backward_weights() const {
  std::vector<ParameterId> backward_weights;
  for (ParameterId id = 0; id < weights_; ++id)
    backward_weights.push_back(known_[static_cast<std::size_t>(id)].backward_weight);
  return backward_weights;
}

const shard::ParameterSpec& DryRun::spec(ParameterId id) const {
  TESSERA_CHECK(id >= 0 && id < static_cast<ParameterId>(specs_.size()), "parameter {} of {}", id, specs_.size());
  return specs_[static_cast<std::size_t>(id)];
}

DryRun::Known& DryRun::known(ParameterId id) {
  TESSERA_CHECK(id >= 0 && id < static_cast<ParameterId>(known_.size()), "parameter {} of {}", id, known_.size());
  return known_[static_cast<std::size_t>(id)];
}

const layout::LocalLayout& DryRun::local_compute(ParameterId id) const {
  const shard::ParameterSpec& spec = this->spec(id);
  const shard::Place& place = places_[static_cast<std::size_t>(spec.domain)];
  return spec.compute.ranks[static_cast<std::size_t>(place.compute)];
}

bool DryRun::by_rows(ParameterId id) const {
  return const_cast<DryRun*>(this)->known(id).by_rows;
}

ParameterId DryRun::read_in(Pass pass, ParameterId id) const {
  const ParameterId backward_weight = known_[static_cast<std::size_t>(id)].backward_weight;
  return pass == Pass::backward && backward_weight != schedule::kNoParameter ? backward_weight : id;
}

void DryRun::begin_step(schedule::StepKind kind, int /*microbatches*/) {
  numbers_.begin_step(kind);
  trace_.clear();
  waits_.clear();
  flops_ = activations_ = {};
}

void DryRun::begin_microbatch() {
  numbers_.begin_microbatch();
  for (Known& known : known_) known.produced = false;
}

void DryRun::end_microbatch() {
  for (std::size_t id = 0; id < known_.size(); ++id)
    TESSERA_CHECK(known_[id].users == 0, "end of microbatch {}: '{}' is consumed and not released",
                  numbers_.microbatch(), specs_[id].name);
  numbers_.end_microbatch();
}

void DryRun::end_step() {
  numbers_.end_step();
}

void DryRun::record(const schedule::Event& event) {
  waits_.push_back(static_cast<int>(trace_.size()));
  trace_.push_back(event);
}

void DryRun::happens(const schedule::Event& event) {
  record(event);
  numbers_.happened(event);
}

WeightView DryRun::consume(ParameterId weight, Pass pass) {
  const ParameterId id = read_in(pass, weight);
  happens(numbers_.next(EventKind::consume, pass, id));
  ++known(id).users;
  const shard::ParameterSpec& spec = this->spec(id);
  const shard::ParameterTypes types = types_of(spec, types_);
  WeightView view;
  view.planes[0].type = types.model;
  if (is_unpacked(spec)) return view;
  const std::vector<shard::PlaneSpec> planes = planes_of(spec, types);
  for (std::size_t p = 0; p < planes.size(); ++p) view.planes[p].type = planes[p].type;
  if (spec.encoding) {
    view.encoded = quant::Quantized{};
    view.encoding = *spec.encoding;
  }
  return view;
}

void DryRun::release(ParameterId weight, Pass pass) {
  const ParameterId id = read_in(pass, weight);
  TESSERA_CHECK(known(id).users > 0, "'{}' is released more often than consumed", spec(id).name);
  happens(numbers_.next(EventKind::release, pass, id));
  --known(id).users;
}

GradientBuffer DryRun::grad_buffer(ParameterId id) {
  TESSERA_CHECK(is_training(), "the gradient of '{}' is asked for outside a training step", spec(id).name);
  return {nullptr, known(id).staging, known(id).produced};
}

void DryRun::produce(ParameterId id) {
  happens(numbers_.next(EventKind::produce, Pass::backward, id));
  known(id).produced = true;
}

void DryRun::gather_rows(ParameterId id, const shard::RowIds& /*ids*/, void* /*out*/, Pass pass,
                         const std::optional<base::Fence>& /*written*/) {
  schedule::Event event = numbers_.next(EventKind::comm, pass, id);
  event.group = schedule::role_name(schedule::kRowGroup, spec(id).domain);
  event.op = schedule::kRowOp;
  event.bytes = known(id).row_bytes;
  happens(event);
}

RowGradient DryRun::grad_rows(ParameterId id, const shard::RowIds& /*ids*/) {
  return {nullptr, known(id).staging, nullptr};
}

void DryRun::publish(std::span<const ParameterId> weights) {
  const auto published = [&](ParameterId id) { record(numbers_.next(EventKind::publish, Pass::forward, id)); };
  for (const ParameterId id : weights) {
    published(id);
    if (known(id).backward_weight != schedule::kNoParameter) published(known(id).backward_weight);
  }
}

void DryRun::reduce_amaxes(std::span<float> amaxes) {
  if (world_size_ == 1) return;
  happens(numbers_.other(EventKind::comm, schedule::kCastGroup, schedule::kAmaxOp,
                         shard::bytes_of(static_cast<std::int64_t>(amaxes.size()), quant::DType::fp32), Pass::forward));
}

Issued DryRun::issue(const ProgramCollective& collective) {
  if (!collective.is_recorded) return {};
  const CollectiveTraffic traffic = traffic_of(collective, compute_group(collective.domain));
  const std::string& group = group_names_.at(static_cast<std::size_t>(collective.domain));
  happens(numbers_.other(EventKind::comm, group, traffic.op, traffic.given, collective.pass));
  activations_[static_cast<std::size_t>(traffic.format)] += traffic.received;
  return {.done = {}, .event = static_cast<int>(trace_.size()) - 1};
}

void DryRun::wait(const Issued& issued) {
  if (issued.event >= 0) waits_[static_cast<std::size_t>(issued.event)] = static_cast<int>(trace_.size()) - 1;
}

void DryRun::stash(std::int64_t bytes, Pass pass, std::string_view way) {
  happens(numbers_.other(EventKind::stash, {}, std::string(way), bytes, pass));
}

void DryRun::fetch(std::int64_t bytes, Pass pass, std::string_view way) {
  happens(numbers_.other(EventKind::fetch, {}, std::string(way), bytes, pass));
}

}  // namespace tessera::runtime
