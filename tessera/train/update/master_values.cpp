#include "tessera/train/update/master_values.h"

#include "tessera/ops/optimizer/split_master.h"

namespace tessera::train {
namespace {

ops::SplitMasters parts_of(void* weights, void* low_halves) {
  return {.weights = static_cast<quant::bfloat16*>(weights), .low_halves = static_cast<std::uint16_t*>(low_halves)};
}
ops::SplitMasters parts_of(shard::ShardedParameter& parameter) {
  return parts_of(parameter.state_weight(), parameter.state_master());
}

}  // namespace

MasterValues::MasterValues(shard::ShardedParameter& parameter, shard::ParallelGroups& parallel)
    : parameter_(parameter), parallel_(parallel) {
  if (!parameter.has_split_master) return;
  const std::int64_t count = parameter.state_elements();
  joined_ = base::Buffer(static_cast<std::size_t>(shard::bytes_of(count, type())), parallel.device);
  ops::join_masters(parts_of(parameter), count, joined_.as<float>().data(), parallel.compute->stream());
}

void MasterValues::store() {
  if (!ops::are_representable(parameter_.types.accumulator, parameter_.types.model)) return;
  auto* masters = reinterpret_cast<float*>(data());
  const std::int64_t count = parameter_.state_elements();
  const base::CudaStream stream = parallel_.compute->stream();
  ops::make_representable(masters, count, stream);
  if (parameter_.has_split_master) ops::split_masters(masters, count, parts_of(parameter_), stream);
  parallel_.compute->synchronize();
}

HostMasters::HostMasters(shard::ShardedParameter& parameter, shard::ParallelGroups& parallel)
    : types_(parameter.types),
      count_(parameter.state_elements()),
      masters_(parameter.master.data(), parameter.master.size(), parallel) {
  if (!parameter.has_split_master) return;
  weights_.emplace(parameter.state_weight(), static_cast<std::size_t>(shard::bytes_of(count_, types_.model)), parallel);
  joined_ = base::Buffer(static_cast<std::size_t>(types_.accumulator_bytes(count_)));
  ops::join_masters(parts_of(weights_->data(), masters_.data()), count_, joined_.as<float>().data());
}

void HostMasters::store() {
  if (ops::are_representable(types_.accumulator, types_.model)) {
    ops::make_representable(static_cast<float*>(data()), count_);
    if (weights_) ops::split_masters(joined_.as<float>().data(), count_, parts_of(weights_->data(), masters_.data()));
  }
  if (weights_) weights_->write_back();
  masters_.write_back();
}

}  // namespace tessera::train
