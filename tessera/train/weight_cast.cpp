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

shard::DistributedCast& WeightCast::encoder_of(const std::vector<schedule::ParameterId>& ids) {
  Encoder& encoder = encoders_[ids];
  std::vector<const std::byte*> places;
  for (const schedule::ParameterId id : ids) add_places(runtime_.parameter(id), places);
  if (encoder.cast && encoder.places == places) return *encoder.cast;
  std::vector<quant::MasterSlice> slices;
  for (const schedule::ParameterId id : ids) slices.push_back(shard::master_slice(runtime_.parameter(id)));
  const shard::Parallel& parallel = runtime_.parallel();
  encoder = {std::move(places), std::make_unique<shard::DistributedCast>(slices, parallel.device, *parallel.compute,
                                                                         shard::Slices::of_whole_tiles)};
  return *encoder.cast;
}

std::vector<float*> WeightCast::places_of_amaxes(std::span<const schedule::ParameterId> ids) {
  std::vector<schedule::ParameterId> encoded;
  for (const schedule::ParameterId id : ids)
    if (runtime_.parameter(id).spec.encoding) encoded.push_back(id);
  if (encoded.empty()) return {};
  const std::span<float> amaxes = encoder_of(encoded).clear_amaxes();
  if (amaxes.empty()) return {};
  std::vector<float*> places;
  auto next = amaxes.begin();
  for (const schedule::ParameterId id : ids)
    places.push_back(runtime_.parameter(id).spec.encoding ? &*next++ : nullptr);
  return places;
}

void WeightCast::cast(std::span<const schedule::ParameterId> ids, bool has_amaxes) {
  shard::Parallel& parallel = runtime_.parallel();
  std::vector<schedule::ParameterId> encoded;
  for (const schedule::ParameterId id : ids) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    if (parameter.spec.encoding) {
      encoded.push_back(id);
      continue;
    }
    TESSERA_CHECK(is_rounded_master(parameter), "parameter '{}': no cast from a master to its {} planes is known",
                  parameter.spec.name, parameter.planes.size());
    if (!parameter.has_master()) continue;
    parallel.kernels().cast(parameter.master.data(), parameter.types.accumulator, parameter.state_weight(),
                            parameter.planes.front().spec.type, parameter.state_elements());
  }
  if (encoded.empty()) return;
  shard::DistributedCast& encoder = encoder_of(encoded);
  if (!has_amaxes) encoder.compute_amax();
  if (encoder.needs_reduction()) runtime_.reduce_amaxes(encoder.shared_amaxes());
  encoder.cast();
}

}  // namespace tessera::train
