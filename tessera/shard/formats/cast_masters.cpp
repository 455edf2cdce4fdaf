#include "tessera/shard/formats/cast_masters.h"

#include <algorithm>
#include <map>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/layout/dense.h"
#include "tessera/layout/redistribute.h"
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

void check_counts(std::span<const QuantizedWeight> weights, std::span<const MasterShard> shards) {
  TESSERA_CHECK(weights.size() == shards.size(), "got {} weights and {} slices of masters, expected equal numbers",
                weights.size(), shards.size());
}

std::int64_t elements_in_byte_of(const quant::Encoding& encoding) {
  return encoding.element == quant::Element::e2m1 ? 2 : 1;
}

// Returns the slices of all ranks, in rank order. The slices of a rank are in the order of the weights.
std::vector<quant::Slice> slices_of_ranks(std::span<const MasterShard> shards, comm::Communicator& group) {
  static_assert(sizeof(quant::Slice) == 2 * sizeof(std::int64_t));
  std::vector<quant::Slice> own, all(shards.size() * static_cast<std::size_t>(group.size()));
  for (const MasterShard& shard : shards) own.push_back(shard.elements);
  const auto counts = comm::equal_counts(group.size(), 2 * static_cast<std::int64_t>(own.size()));
  group.all_gather(own.data(), all.data(), counts, quant::DType::i64).synchronize();
  return all;
}

// Returns the plan that gathers the elements of weight `number` of `weights` weights. Columns are elements. Every local
// buffer has the whole weight.
layout::TransferPlan gather_plan(std::int64_t elements, std::span<const quant::Slice> slices, std::size_t number,
                                 std::size_t weights) {
  layout::Layout sliced{.shape = {1, elements}};
  for (std::size_t at = number; at < slices.size(); at += weights) {
    layout::LocalLayout& local = sliced.ranks.emplace_back(layout::LocalLayout{.size = elements});
    const quant::Slice& slice = slices[at];
    if (slice.size() == 0) continue;
    local.pieces.push_back(
        {.box = {.rows = 1, .col = slice.begin, .cols = slice.size()}, .offset = slice.begin, .stride = slice.size()});
  }
  try {
    return layout::redistribute(sliced, layout::replicated(sliced.shape, sliced.size()));
  } catch (const Error& error) {
    throw Error("weight {}: the ranks' slices do not form the weight: {}", number, error.what());
  }
}

// Consecutive bytes. `half` is set if only one half of the byte is used.
struct Bytes {
  std::int64_t first = 0, count = 0;
  std::optional<quant::Half> half = std::nullopt;
};
// Returns the bytes with the elements of a box of one row. A byte of which only one half is in the box is separate.
std::vector<Bytes> bytes_of_elements(const layout::Box& box, std::int64_t elements_in_byte) {
  if (elements_in_byte == 1) return {{.first = box.col, .count = box.cols}};
  const std::int64_t end = box.col + box.cols, first = (box.col + 1) / 2, last = end / 2;
  std::vector<Bytes> parts;
  if (box.col % 2 != 0) parts.push_back({.first = box.col / 2, .count = 1, .half = quant::Half::odd});
  if (first < last) parts.push_back({.first = first, .count = last - first});
  if (end % 2 != 0) parts.push_back({.first = last, .count = 1, .half = quant::Half::even});
  return parts;
}

// The bytes of a weight that one rank sends to another rank.
struct SentBytes {
  int source = 0, target = 0;
  std::size_t weight = 0;
  Bytes bytes;
};
// Returns the bytes that rank `rank` sends or receives. The list of two ranks has their common entries in the same
// order.
std::vector<SentBytes> sent_bytes(std::span<const QuantizedWeight> weights, std::span<const quant::Slice> slices,
                                  int rank, quant::Format format) {
  const std::int64_t elements_in_byte = elements_in_byte_of(quant::weight_encoding(format));
  std::vector<SentBytes> all;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const std::int64_t elements = weights[w].matrix.elements();
    if (elements == 0) continue;
    for (const layout::Transfer& moved : gather_plan(elements, slices, w, weights.size()).transfers) {
      if (moved.source == moved.target || (moved.source != rank && moved.target != rank)) continue;
      for (const Bytes& bytes : bytes_of_elements(moved.box, elements_in_byte))
        all.push_back({.source = moved.source, .target = moved.target, .weight = w, .bytes = bytes});
    }
  }
  return all;
}

}  // namespace

std::vector<quant::MasterSlice> master_slices(std::span<const QuantizedWeight> weights,
                                              std::span<const MasterShard> shards, quant::Format format) {
  check_counts(weights, shards);
  const quant::Encoding encoding = quant::weight_encoding(format);
  const std::int64_t elements_in_byte = elements_in_byte_of(encoding);
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

QuantizedGather::QuantizedGather(std::span<const QuantizedWeight> weights, std::span<const MasterShard> shards,
                                 comm::Communicator& group, quant::Format format)
    : group_(group) {
  check_counts(weights, shards);
  for (const quant::Half half : {quant::Half::even, quant::Half::odd}) shared_.push_back({.half = half});
  const std::vector<SentBytes> sent = sent_bytes(weights, slices_of_ranks(shards, group), group.rank(), format);
  const auto address_of = [&](const SentBytes& part) {
    std::uint8_t* data = weights[part.weight].arrays.data;
    TESSERA_CHECK(data != nullptr, "weight {}: no memory for its data", part.weight);
    return data + part.bytes.first;
  };
  for (const SentBytes& part : sent)
    for (SharedBytes& shared : shared_)
      if (part.target == group.rank() && part.bytes.half == shared.half) shared.targets.push_back(address_of(part));
  std::map<quant::Half, std::byte*> next;
  for (SharedBytes& shared : shared_) {
    shared.received = base::Buffer(shared.targets.size(), group.kernels().device());
    next[shared.half] = shared.received.data();
  }
  for (const SentBytes& part : sent) {
    const auto count = static_cast<std::size_t>(part.bytes.count);
    void* data = address_of(part);
    if (part.source == group.rank()) {
      sends_.push_back({.peer = part.target, .data = data, .bytes = count});
      continue;
    }
    if (part.bytes.half) data = next[*part.bytes.half]++;
    receives_.push_back({.peer = part.source, .data = data, .bytes = count});
  }
}

QuantizedGather::~QuantizedGather() {
  group_.lane().record().wait_until_done();
}

void QuantizedGather::run(base::Lane& lane) {
  if (group_.size() == 1) return;
  group_.lane().wait(lane.record());
  group_.exchange(sends_, receives_);
  group_.lane().run([this] {
    for (const SharedBytes& shared : shared_)
      quant::copy_halves(shared.half, reinterpret_cast<const std::uint8_t*>(shared.received.data()), shared.targets,
                         shared.received.device(), group_.lane().stream());
  });
  lane.wait(group_.lane().record());
}

std::unique_ptr<QuantizedGather> gather_quantized(std::span<const QuantizedWeight> weights,
                                                  std::span<const MasterShard> shards, comm::Communicator& group,
                                                  quant::Format format, base::Lane& lane) {
  auto gather = std::make_unique<QuantizedGather>(weights, shards, group, format);
  gather->run(lane);
  return gather;
}

}  // namespace tessera::shard
