#include "tessera/train/update/weight_cast.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/shard/formats/encoded.h"

namespace tessera::train {
namespace {

// Appends the addresses of a parameter's planes.
void add_places(const shard::ShardedParameter& parameter, std::vector<const std::byte*>& places) {
  for (const shard::Plane& plane : parameter.planes) places.push_back(plane.data.data());
}

}  // namespace

bool is_rounded_master(const shard::ShardedParameter& parameter) {
  return parameter.planes.size() == 1 && quant::is_floating(parameter.planes.front().spec.type);
}

shard::DistributedCast& WeightCast::encoder_of(const std::vector<Target>& targets) {
  Encoder& encoder = encoders_[targets];
  std::vector<const std::byte*> places;
  for (const Target& target : targets) add_places(runtime_.parameter(target.id), places);
  if (encoder.cast && encoder.places == places) return *encoder.cast;
  std::vector<quant::MasterSlice> slices;
  shard::WholeTiles whole;
  for (const Target& target : targets) {
    shard::ShardedParameter& parameter = runtime_.parameter(target.id);
    std::ranges::copy(shard::master_slices(parameter, runtime_.parameter(target.weight), whole.numbers),
                      std::back_inserter(slices));
    whole.numbers += shard::matrices_of(parameter.spec);
    whole.uses_amaxes = whole.uses_amaxes || shard::has_tensor_scale(*parameter.spec.encoding);
  }
  const shard::ParallelGroups& parallel = runtime_.parallel();
  encoder = {std::move(places),
             std::make_unique<shard::DistributedCast>(slices, parallel.device, *parallel.compute, whole)};
  return *encoder.cast;
}

// Returns the targets in the order of the cast.
std::vector<WeightCast::Target> WeightCast::targets_of(std::span<const schedule::ParameterId> ids) const {
  std::vector<Target> targets;
  for (const schedule::ParameterId id : ids) {
    targets.push_back({id, id});
    if (const schedule::ParameterId backward_weight = runtime_.parameters().backward_weight(id);
        backward_weight != schedule::kNoParameter)
      targets.push_back({backward_weight, id});
  }
  return targets;
}

std::vector<shard::StateAmaxes> WeightCast::places_of_amaxes(std::span<const schedule::ParameterId> ids) {
  std::vector<Target> encoded = targets_of(ids);
  std::erase_if(encoded, [&](const Target& target) { return !runtime_.parameter(target.id).spec.encoding; });
  if (encoded.empty()) return {};
  if (std::ranges::any_of(encoded, [](const Target& target) { return target.id != target.weight; })) return {};
  const std::span<float> amaxes = encoder_of(encoded).clear_amaxes();
  if (amaxes.empty()) return {};
  std::vector<shard::StateAmaxes> places;
  float* next = amaxes.data();
  for (const schedule::ParameterId id : ids) {
    const shard::ShardedParameter& parameter = runtime_.parameter(id);
    places.emplace_back();
    if (!parameter.spec.encoding) continue;
    places.back() = shard::state_amaxes(parameter, next);
    next += shard::matrices_of(parameter.spec);
  }
  return places;
}

// Rounds a master to the only plane of its parameter.
void WeightCast::round(const Target& target) {
  shard::ShardedParameter& parameter = runtime_.parameter(target.id);
  TESSERA_CHECK(is_rounded_master(parameter), "parameter '{}': cannot cast a master to {} planes", parameter.spec.name,
                parameter.planes.size());
  const shard::ShardedParameter& weight = runtime_.parameter(target.weight);
  if (!weight.has_master() || weight.has_split_master) return;
  runtime_.parallel().kernels().cast(weight.master.data(), weight.types.accumulator, parameter.state_weight(),
                                     parameter.planes.front().spec.type, parameter.state_elements());
}

void WeightCast::cast(std::span<const schedule::ParameterId> ids, bool has_amaxes) {
  std::vector<Target> encoded;
  for (const Target& target : targets_of(ids))
    if (runtime_.parameter(target.id).spec.encoding)
      encoded.push_back(target);
    else
      round(target);
  if (encoded.empty()) return;
  shard::DistributedCast& encoder = encoder_of(encoded);
  if (!has_amaxes) encoder.compute_amax();
  if (encoder.needs_reduction()) runtime_.program().reduce_amaxes(encoder.shared_amaxes());
  encoder.cast();
}

}  // namespace tessera::train
