#include "tessera/shard/formats/quantized_gather.h"

#include <map>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/layout/dense.h"
#include "tessera/layout/redistribute.h"

namespace tessera::shard {
namespace {

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
  const std::int64_t elements_in_byte = quant::elements_in_byte(quant::weight_encoding(format).element);
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

QuantizedGather::QuantizedGather(std::span<const QuantizedWeight> weights, std::span<const MasterShard> shards,
                                 comm::Communicator& group, quant::Format format)
    : group_(group) {
  TESSERA_CHECK(weights.size() == shards.size(), "got {} weights and {} slices of masters, expected equal numbers",
                weights.size(), shards.size());
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
