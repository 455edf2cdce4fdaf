#include "tessera/train/weight_cast.h"

#include "tessera/base/error.h"
#include "tessera/shard/encoded.h"

namespace tessera::train {
namespace {

// The tiles of the rows that a rank updates are its own, so those rows are cast as a matrix by themselves.
quant::MasterSlice slice_of(shard::ShardedParameter& parameter) {
  const quant::Encoding& encoding = *parameter.spec.encoding;
  const quant::Extent rows = shard::extent_of(parameter.local_state);
  std::vector<shard::Plane>& planes = parameter.planes;
  const quant::Quantized target =
      shard::encoded_matrix(parameter, planes.front().state_data(), planes.back().state_data());
  return {.source = {.data = parameter.master.data(), .type = parameter.types.accumulator},
          .matrix = rows,
          .encoding = encoding,
          .slice = {.end = rows.elements()},
          .data = target.data,
          .tiles = {.end = quant::scale_extent(encoding, rows).elements()},
          .scales = target.scales,
          .tensor_amax = target.tensor_amax};
}

}  // namespace

bool is_rounded_master(const shard::ShardedParameter& parameter) {
  return parameter.planes.size() == 1 && quant::is_floating(parameter.planes.front().spec.type);
}

quant::MasterCast& WeightCast::encoder_of(const std::vector<schedule::ParameterId>& ids) {
  std::unique_ptr<quant::MasterCast>& encoder = encoders_[ids];
  if (encoder) return *encoder;
  std::vector<quant::MasterSlice> slices;
  for (const schedule::ParameterId id : ids) slices.push_back(slice_of(runtime_.parameter(id)));
  const shard::Parallel& parallel = runtime_.parallel();
  encoder = quant::make_master_cast(slices, parallel.device, parallel.compute->stream());
  return *encoder;
}

void WeightCast::cast(std::span<const schedule::ParameterId> ids) {
  shard::Parallel& parallel = runtime_.parallel();
  std::vector<schedule::ParameterId> encoded;
  bool needs_tensor_amaxes = false;
  for (const schedule::ParameterId id : ids) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    if (parameter.spec.encoding) {
      encoded.push_back(id);
      needs_tensor_amaxes |= shard::has_tensor_scale(*parameter.spec.encoding);
      continue;
    }
    TESSERA_CHECK(is_rounded_master(parameter), "parameter '{}': no cast from a master to its {} planes is known",
                  parameter.spec.name, parameter.planes.size());
    if (!parameter.has_master()) continue;
    parallel.kernels().cast(parameter.master.data(), parameter.types.accumulator, parameter.state_weight(),
                            parameter.planes.front().spec.type, parameter.state_elements());
  }
  if (encoded.empty()) return;
  quant::MasterCast& encoder = encoder_of(encoded);
  encoder.compute_amaxes();
  if (needs_tensor_amaxes) runtime_.reduce_amaxes(encoder.tensor_amaxes(), encoder.slices());
  encoder.cast();
}

}  // namespace tessera::train
