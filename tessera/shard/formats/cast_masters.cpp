#include "tessera/shard/formats/cast_masters.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/layout/dense.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/parameter_layouts.h"

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
  const std::int64_t elements_in_byte = quant::elements_in_byte(encoding.element);
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

std::vector<quant::MasterSlice> master_slices(ShardedParameter& parameter, const ShardedParameter& weight,
                                              std::int64_t first_number) {
  TESSERA_CHECK(parameter.spec.encoding, "parameter '{}' has no encoding", parameter.spec.name);
  const quant::Encoding& encoding = *parameter.spec.encoding;
  const quant::Extent state = extent_of(parameter.local_state);
  TESSERA_CHECK(extent_of(weight.local_state) == state,
                "parameter '{}' and its weight '{}' have different shards, expected equal shards", parameter.spec.name,
                weight.spec.name);
  std::vector<Plane>& planes = parameter.planes;
  const quant::Quantized target = encoded_matrix(parameter, planes.front().state_data(), planes.back().state_data());
  const bool is_stack = !parameter.layouts.matrix_rows.empty(), is_one_tile = encoding.tile == quant::ScaleTile{};
  const std::vector<RowsOfMatrix> updated = matrices_in(parameter.spec, parameter.local_state);
  auto next = updated.begin();
  std::vector<quant::MasterSlice> slices;
  std::int64_t elements = 0, tiles = 0;  // of earlier matrices, in the state
  for (const RowsOfMatrix& used : is_stack ? matrices_in(parameter.spec, parameter.local_compute)
                                           : std::vector<RowsOfMatrix>{{.rows = state.rows}}) {
    quant::Extent rows = state;
    if (is_stack) rows.rows = next != updated.end() && next->matrix == used.matrix ? next++->rows : 0;
    if (rows.rows == 0) rows = {};
    const auto number = static_cast<std::int64_t>(slices.size());  // in tensor_scale
    const std::int64_t of_matrix = quant::scale_extent(encoding, rows).elements();
    slices.push_back({.source = {.data = weight.master.data() + weight.types.accumulator_bytes(elements),
                                 .type = weight.types.accumulator},
                      .matrix = rows,
                      .encoding = encoding,
                      .slice = {.end = rows.elements()},
                      .data = target.data + quant::data_bytes(encoding.element, elements),
                      .tiles = {.end = of_matrix},
                      .scales = static_cast<std::byte*>(target.scales) +
                                bytes_of(is_one_tile ? number : tiles, quant::scale_type(encoding.scale)),
                      .tensor_amax = target.tensor_amax == nullptr ? nullptr : target.tensor_amax + number,
                      .not_finite = parameter.not_finite(),
                      .number = first_number + used.matrix});
    elements += rows.elements();
    tiles += of_matrix;
  }
  TESSERA_CHECK(elements == state.elements(), "parameter '{}': the state has {} elements outside its compute part",
                parameter.spec.name, state.elements() - elements);
  return slices;
}

StateAmaxes state_amaxes(const ShardedParameter& parameter, float* amaxes) {
  if (parameter.layouts.matrix_rows.empty() || parameter.local_state.size == 0) return {.first = amaxes};
  const quant::Extent matrix = compute_matrices(parameter).matrix;
  const auto row = layout::local_row(parameter.local_compute, parameter.local_state.pieces.front().box);
  TESSERA_CHECK(row, "parameter '{}': the state is outside the compute part", parameter.spec.name);
  return {.first = amaxes + matrices_in(parameter.spec, parameter.local_state).front().matrix,
          .elements = matrix.elements(),
          .offset = *row % matrix.rows * matrix.cols};
}

DistributedCast::DistributedCast(std::span<const quant::MasterSlice> slices, base::Device device, base::Lane& lane)
    : lane_(lane) {
  if (slices.empty()) return;
  make(slices, device, -1);
  reduced_ = encoder_->amax_count();
}

DistributedCast::DistributedCast(std::span<const quant::MasterSlice> slices, base::Device device, base::Lane& lane,
                                 const WholeTiles& whole)
    : lane_(lane) {
  if (whole.numbers == 0) return;
  make(slices, device, whole.numbers);
  if (whole.uses_amaxes) reduced_ = whole.numbers;
}

void DistributedCast::make(std::span<const quant::MasterSlice> slices, base::Device device, std::int64_t numbers) {
  encoder_ = quant::make_master_cast(slices, device, lane_.stream(), numbers);
  is_one_tile_each_ = std::ranges::all_of(
      slices, [](const quant::MasterSlice& one) { return one.encoding.tile == quant::ScaleTile{}; });
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
