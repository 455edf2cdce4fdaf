#include "tessera/train/weight_cast.h"

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

// Where a parameter's planes lie.
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
  for (const Target& target : targets)
    slices.push_back(shard::master_slice(runtime_.parameter(target.id), runtime_.parameter(target.weight)));
  const shard::Parallel& parallel = runtime_.parallel();
  encoder = {std::move(places), std::make_unique<shard::DistributedCast>(slices, parallel.device, *parallel.compute,
                                                                         shard::Slices::of_whole_tiles)};
  return *encoder.cast;
}

// Casts it at once, or adds it to those that are encoded together.
void WeightCast::add(const Target& target, std::vector<Target>& encoded) {
  shard::ShardedParameter& parameter = runtime_.parameter(target.id);
  if (parameter.spec.encoding) return encoded.push_back(target);
  TESSERA_CHECK(is_rounded_master(parameter), "parameter '{}': no cast from a master to its {} planes is known",
                parameter.spec.name, parameter.planes.size());
  const shard::ShardedParameter& weight = runtime_.parameter(target.weight);
  if (!weight.has_master()) return;
  runtime_.parallel().kernels().cast(weight.master.data(), weight.types.accumulator, parameter.state_weight(),
                                     parameter.planes.front().spec.type, parameter.state_elements());
}

void WeightCast::cast(std::span<const schedule::ParameterId> ids) {
  std::vector<Target> encoded;
  for (const schedule::ParameterId id : ids) {
    add({id, id}, encoded);
    if (const schedule::ParameterId copy = runtime_.backward_copy(id); copy != schedule::kNoParameter)
      add({copy, id}, encoded);
  }
  if (encoded.empty()) return;
  shard::DistributedCast& encoder = encoder_of(encoded);
  encoder.compute_amax();
  if (encoder.needs_reduction()) runtime_.reduce_amaxes(encoder.shared_amaxes());
  encoder.cast();
}

}  // namespace tessera::train
