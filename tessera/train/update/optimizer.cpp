#include "tessera/train/update/optimizer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/ops/initialise/initialise.h"
#include "tessera/runtime/update_calls.h"
#include "tessera/train/update/dense_pieces.h"
#include "tessera/train/update/master_values.h"

namespace tessera::train {
namespace {

// Returns whether the update itself writes the rounded weight. The update always writes a weight that is its own
// master. If a weight has a backward weight, the cast writes both of them.
bool is_fused(const shard::ShardedParameter& parameter) {
  return !parameter.spec.backward && is_rounded_master(parameter);
}

}  // namespace

Optimizer::Optimizer(runtime::Runtime& runtime, std::shared_ptr<const ops::UpdatePolicy> policy, std::uint64_t seed)
    : runtime_(runtime), policy_(std::move(policy)), seed_(seed), cast_(runtime), groups_(policy_) {
  const base::Device device = runtime.parallel().device;
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    std::vector<base::Buffer>& state = state_.emplace_back();
    Place& place = places_.emplace_back();
    if (!parameter.spec.trainable) continue;
    const ops::ParameterUpdate update = policy_->update_of(parameter.spec.name, parameter.spec.decay);
    place = {.rule = update.rule, .group = groups_.add(update)};
    TESSERA_CHECK(rule_of(id).matrix_rule() == nullptr || shard::has_matrices(parameter.spec),
                  "'{}' has no matrices, but its rule {} updates whole matrices", parameter.spec.name,
                  rule_of(id).name());
    const std::vector<ops::StatePlane> planes = rule_of(id).planes(parameter.types.accumulator);
    TESSERA_CHECK(planes.size() <= ops::kMaxStatePlanes, "update rule: {} state planes, expected at most {}",
                  planes.size(), ops::kMaxStatePlanes);
    for (const ops::StatePlane& plane : planes)
      state.emplace_back(static_cast<std::size_t>(shard::bytes_of(parameter.state_elements(), plane.type)), device)
          .fill_zero();
  }
  for (const auto& rule : policy_->rules)
    matrix_updates_.push_back(
        rule->matrix_rule() == nullptr ? nullptr : std::make_unique<MatrixUpdate>(runtime, *rule->matrix_rule()));
  scalars_ = base::Buffer(groups_.bytes(), device);
  if (!runtime.parallel().is_asynchronous()) return;
  const std::size_t choices = ops::choices_bytes(groups_.bytes());
  for (int i = 0; i < kMaxUnconfirmed; ++i) uploads_.push_back(base::Buffer::pinned(choices));
  choices_ = base::Buffer(choices, device);
  counter_ = base::Buffer(sizeof(std::int64_t), device);
  set_updates(0);
}

const ops::UpdateRule& Optimizer::rule_of(schedule::ParameterId id) const {
  return *policy_->rules[places_[static_cast<std::size_t>(id)].rule];
}

void Optimizer::set_updates(std::int64_t updates) {
  TESSERA_CHECK(unconfirmed_ == 0, "cannot set the number of updates while {} updates are unconfirmed", unconfirmed_);
  updates_ = updates;
  if (counter_.size() > 0) base::copy_bytes(counter_.data(), &updates_, sizeof updates_);
}

ops::UpdateShard Optimizer::shard_of(schedule::ParameterId id) {
  shard::ShardedParameter& parameter = runtime_.parameter(id);
  ops::UpdateShard shard{.master = parameter.state_master(),
                         .master_type = parameter.types.accumulator,
                         .weight = is_fused(parameter) ? parameter.state_weight() : nullptr,
                         .weight_type = parameter.types.model,
                         .is_split = parameter.has_split_master,
                         .gradient = parameter.state_gradient(),
                         .gradient_type = parameter.gradient_type(),
                         .count = parameter.state_elements(),
                         .group = places_[static_cast<std::size_t>(id)].group,
                         .rounding_key = ops::state_rounding_key(seed_, parameter.spec.name)};
  std::ranges::transform(state_[static_cast<std::size_t>(id)], shard.planes.begin(),
                         [](base::Buffer& plane) { return plane.data(); });
  return shard;
}

void Optimizer::append_parts(schedule::ParameterId id, const ops::UpdateShard& whole,
                             std::vector<ops::UpdateShard>& shards) const {
  const shard::ShardedParameter& parameter = runtime_.parameter(id);
  const std::vector<ops::StatePlane> planes = rule_of(id).planes(parameter.types.accumulator);
  const bool is_rounded = std::ranges::any_of(
      planes, [&](const ops::StatePlane& plane) { return plane.type != parameter.types.accumulator; });
  if (!is_rounded) return shards.push_back(whole);
  const std::int64_t logical_cols = layout::matrix_shape(parameter.spec.dims).cols;
  for (const layout::Piece& piece : dense_pieces(parameter.local_state)) {
    ops::UpdateShard part = part_of(whole, piece.offset, piece.box.elements(), planes);
    part.indices = logical_indices(piece, logical_cols);
    shards.push_back(part);
  }
}

void Optimizer::run_rules(std::span<const MatrixShard> shards, const ops::Clip* clip) {
  for (std::size_t rule = 0; rule < policy_->rules.size(); ++rule) {
    const std::byte* const scalars = scalars_.data() + groups_.offset_of(rule);
    std::vector<MatrixShard> of_rule;
    std::ranges::copy_if(shards, std::back_inserter(of_rule),
                         [&](const MatrixShard& it) { return places_[static_cast<std::size_t>(it.id)].rule == rule; });
    if (matrix_updates_[rule]) {
      matrix_updates_[rule]->update(of_rule, scalars, clip);
      continue;
    }
    std::vector<ops::UpdateShard> parts;
    for (const auto& [id, shard] : of_rule) append_parts(id, shard, parts);
    if (!parts.empty()) policy_->rules[rule]->update(parts, scalars, clip, runtime_.parallel().compute->stream());
  }
}

void Optimizer::update_bucket(std::span<const schedule::ParameterId> bucket, const ops::Clip* clip) {
  std::vector<schedule::ParameterId> left;
  for (const schedule::ParameterId id : bucket)
    if (!is_fused(runtime_.parameter(id))) left.push_back(id);
  const std::vector<shard::StateAmaxes> amaxes = cast_.places_of_amaxes(left);
  std::vector<MatrixShard> shards;
  auto next = amaxes.begin();
  for (const schedule::ParameterId id : bucket) {
    ops::UpdateShard shard = shard_of(id);
    if (!amaxes.empty() && !is_fused(runtime_.parameter(id))) {
      shard.amax = next->first;
      shard.amax_elements = next->elements;
      shard.amax_offset = next++->offset;
    }
    shards.push_back({id, shard});
  }
  run_rules(shards, clip);
  cast_.cast(left, !amaxes.empty());
}

void Optimizer::begin_update(double lr) {
  if (!runtime_.parallel().is_asynchronous()) return groups_.write(lr, updates_ + 1, scalars_.data());
  TESSERA_CHECK(unconfirmed_ < kMaxUnconfirmed, "cannot begin an update while {} updates are unconfirmed, the maximum",
                unconfirmed_);
  ++unconfirmed_;
  // The buffer can be reused: the previous copy from this buffer is done, because its update is confirmed.
  base::Buffer& upload = uploads_[std::exchange(next_upload_, (next_upload_ + 1) % uploads_.size())];
  groups_.write_choices(lr, updates_ + 1, upload.data());
  runtime_.parallel().kernels().copy(upload.data(), choices_.data(), upload.size());
}

void Optimizer::update(const ops::Clip* clip) {
  const shard::ParallelGroups& parallel = runtime_.parallel();
  if (parallel.is_asynchronous()) {
    base::cuda_only<ops::cuda::choose_scalars>(choices_.data(), groups_.bytes(), clip,
                                               counter_.as<std::int64_t>().data(), scalars_.data(),
                                               parallel.compute->stream());
  } else {
    if (clip->applies == 0) return;
    ++updates_;
  }
  update_buckets(runtime_.program(), runtime_.by_first_use(),
                 [&](std::span<const schedule::ParameterId> bucket) { update_bucket(bucket, clip); });
}

std::int64_t Optimizer::matrix_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& update : matrix_updates_) bytes += update ? update->bytes() : 0;
  return bytes;
}

void Optimizer::confirm_update(const ops::Clip& clip) {
  if (unconfirmed_ == 0) return;  // on a CPU, every update is confirmed immediately
  --unconfirmed_;
  if (clip.applies != 0) ++updates_;
}

namespace {

// Runs on the stream if it is not null.
void fill_part(const shard::ParameterSpec& spec, const layout::Piece& piece, std::int64_t logical_cols,
               std::uint64_t seed, void* data, quant::DType type, base::CudaStream stream) {
  if (spec.initial_deviation == 0) {
    if (stream)
      base::cuda_only<ops::cuda::fill_constant>(spec.initial_value, data, type, piece.box.elements(), stream);
    else
      ops::fill_constant(spec.initial_value, data, type, piece.box.elements());
    return;
  }
  const ops::NormalFill fill{.seed = seed,
                             .name = spec.name,
                             .standard_deviation = spec.initial_deviation,
                             .logical_cols = logical_cols,
                             .row = piece.box.row,
                             .col = piece.box.col,
                             .rows = piece.box.rows,
                             .cols = piece.box.cols,
                             .stride = piece.stride};
  if (stream)
    base::cuda_only<ops::cuda::fill_normal>(fill, data, type, stream);
  else
    ops::fill_normal(fill, data, type);
}

}  // namespace

void set_initial_values(runtime::Runtime& runtime, std::uint64_t seed) {
  const shard::ParallelGroups& parallel = runtime.parallel();
  WeightCast cast(runtime);
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    MasterValues masters(parameter, runtime.parallel());
    for (const layout::Piece& piece : parameter.local_state.pieces)
      fill_part(parameter.spec, piece, parameter.storage.shape.cols, seed,
                masters.data() + shard::bytes_of(piece.offset, masters.type()), masters.type(),
                parallel.compute->stream());
    masters.store();
    cast.cast({&id, 1});
    runtime.program().publish(id);
  }
}

}  // namespace tessera::train
