#include "tessera/shard/formats/cast_masters.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/shard/formats/encoded.h"

namespace tessera::shard {
namespace {

void check_arrays(const QuantizedWeight& weight, const MasterShard& shard, const quant::Encoding& encoding,
                  std::size_t number) {
  const quant::DType type = shard.master.type;
  TESSERA_CHECK(type == quant::DType::fp32 || type == quant::DType::bf16,
                "weight {}: the master has type {}, expected fp32 or bf16", number, name_of(type));
  const quant::Quantized& arrays = weight.arrays;
  TESSERA_CHECK(shard.elements.size() <= 0 || (arrays.data != nullptr && shard.master.data != nullptr),
                "weight {}: the slice has {} elements without {}", number, shard.elements.size(),
                arrays.data == nullptr ? "data to write" : "a master");
  if (weight.matrix.elements() == 0) return;
  TESSERA_CHECK(arrays.scales != nullptr && (encoding.scale != quant::Scale::e4m3 || arrays.tensor_amax != nullptr),
                "weight {}: no memory for its {}", number, arrays.scales == nullptr ? "scales" : "amax");
}

}  // namespace

std::vector<quant::MasterSlice> master_slices(std::span<const QuantizedWeight> weights,
                                              std::span<const MasterShard> shards, quant::Format format) {
  TESSERA_CHECK(weights.size() == shards.size(), "got {} weights and {} slices of masters, expected equal numbers",
                weights.size(), shards.size());
  const quant::Encoding encoding = quant::weight_encoding(format);
  const std::int64_t elements_in_byte = encoding.element == quant::Element::e2m1 ? 2 : 1;
  std::vector<quant::MasterSlice> slices;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const auto& [matrix, arrays, not_finite] = weights[w];
    check_arrays(weights[w], shards[w], encoding, w);
    const bool has_scales = arrays.scales != nullptr;
    slices.push_back(
        {.source = shards[w].master,
         .matrix = matrix,
         .encoding = encoding,
         .slice = shards[w].elements,
         .data = arrays.data == nullptr ? nullptr : arrays.data + shards[w].elements.begin / elements_in_byte,
         .tiles = {.end = has_scales ? quant::scale_extent(encoding, matrix).elements() : 0},
         .scales = arrays.scales,
         .tensor_amax = arrays.tensor_amax,
         .not_finite = not_finite});
  }
  return slices;
}

quant::MasterSlice master_slice(ShardedParameter& parameter, const ShardedParameter& weight) {
  TESSERA_CHECK(parameter.spec.encoding, "parameter '{}' has no encoding", parameter.spec.name);
  const quant::Encoding& encoding = *parameter.spec.encoding;
  const quant::Extent rows = extent_of(parameter.local_state);
  TESSERA_CHECK(extent_of(weight.local_state) == rows,
                "parameter '{}' and its weight '{}' have different shards, expected equal shards", parameter.spec.name,
                weight.spec.name);
  std::vector<Plane>& planes = parameter.planes;
  const quant::Quantized target = encoded_matrix(parameter, planes.front().state_data(), planes.back().state_data());
  return {.source = {.data = weight.master.data(), .type = weight.types.accumulator},
          .matrix = rows,
          .encoding = encoding,
          .slice = {.end = rows.elements()},
          .data = target.data,
          .tiles = {.end = quant::scale_extent(encoding, rows).elements()},
          .scales = target.scales,
          .tensor_amax = target.tensor_amax,
          .not_finite = parameter.not_finite()};
}

DistributedCast::DistributedCast(std::span<const quant::MasterSlice> slices, base::Device device, base::Lane& lane,
                                 Slices cut)
    : lane_(lane) {
  if (slices.empty()) return;
  encoder_ = quant::make_master_cast(slices, device, lane.stream());
  is_one_tile_each_ = std::ranges::all_of(
      slices, [](const quant::MasterSlice& one) { return one.encoding.tile == quant::ScaleTile{}; });
  if (cut == Slices::any_position)
    reduced_ = encoder_->amax_count();
  else if (std::ranges::any_of(slices, [](const quant::MasterSlice& one) { return has_tensor_scale(one.encoding); }))
    reduced_ = encoder_->numbers();
}

DistributedCast::~DistributedCast() {
  if (!encoder_) return;
  lane_.record().wait_until_done();
}

void DistributedCast::compute_amax() {
  if (encoder_) encoder_->compute_amaxes();
}

std::span<float> DistributedCast::clear_amaxes() {
  if (!is_one_tile_each_) return {};
  encoder_->clear_amaxes();
  return {encoder_->tensor_amaxes(), static_cast<std::size_t>(encoder_->numbers())};
}

std::span<float> DistributedCast::shared_amaxes() {
  if (reduced_ == 0) return {};
  return {encoder_->amaxes() + encoder_->amax_count() - reduced_, static_cast<std::size_t>(reduced_)};
}

void DistributedCast::reduce_amax(comm::Communicator& group) {
  if (reduced_ == 0 || group.size() == 1) return;
  group.lane().wait(lane_.record());
  lane_.wait(group.all_reduce(shared_amaxes().data(), reduced_, quant::DType::fp32, comm::ReduceOp::max));
}

void DistributedCast::cast() {
  if (encoder_) encoder_->cast();
}

void DistributedCast::run(comm::Communicator& group) {
  compute_amax();
  reduce_amax(group);
  cast();
}

std::unique_ptr<DistributedCast> cast_master_weights(std::span<const QuantizedWeight> weights,
                                                     std::span<const MasterShard> shards, comm::Communicator& group,
                                                     quant::Format format, base::Lane& lane) {
  auto cast = std::make_unique<DistributedCast>(master_slices(weights, shards, format), group.kernels().device(), lane);
  cast->run(group);
  return cast;
}

}  // namespace tessera::shard
