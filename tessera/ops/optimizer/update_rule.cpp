#include "tessera/ops/optimizer/update_rule.h"

#include <algorithm>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::ops {
namespace {

template <typename T>
T* behind(T* data, std::int64_t elements, std::size_t size) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return data == nullptr ? nullptr : static_cast<Byte*>(data) + static_cast<std::size_t>(elements) * size;
}

}  // namespace

SplitMasters split_parts(const UpdateShard& shard, std::int64_t start) {
  return {.weights = static_cast<quant::bfloat16*>(shard.weight) + start,
          .low_halves = static_cast<std::uint16_t*>(shard.master) + start};
}

std::size_t master_size(const UpdateShard& shard) {
  return shard.is_split ? sizeof(std::uint16_t) : quant::size_of(shard.master_type);
}

UpdateShard part_of(const UpdateShard& whole, std::int64_t offset, std::int64_t count,
                    std::span<const StatePlane> planes) {
  UpdateShard part = whole;
  part.count = count;
  part.master = behind(whole.master, offset, master_size(whole));
  part.weight = behind(whole.weight, offset, quant::size_of(whole.weight_type));
  part.gradient = behind(whole.gradient, offset, quant::size_of(whole.gradient_type));
  for (std::size_t i = 0; i < planes.size(); ++i)
    part.planes[i] = behind(whole.planes[i], offset, quant::size_of(planes[i].type));
  if (whole.amax != nullptr && whole.amax_elements > 0) {
    const std::int64_t first = whole.amax_offset + offset;
    part.amax = whole.amax + first / whole.amax_elements;
    part.amax_offset = first % whole.amax_elements;
  }
  return part;
}

void check_shard(const UpdateShard& shard, std::size_t planes) {
  TESSERA_CHECK(shard.count >= 0, "update: count {}: expected 0 or more", shard.count);
  const bool has_planes =
      std::all_of(shard.planes.begin(), shard.planes.begin() + planes, [](const void* plane) { return plane; });
  TESSERA_CHECK((shard.master && shard.gradient && has_planes) || shard.count == 0,
                "update: master, gradient or a state plane is null for {} elements", shard.count);
  TESSERA_CHECK(shard.amax == nullptr || shard.master_type == quant::DType::fp32,
                "update: an amax needs an fp32 master, got {}", name_of(shard.master_type));
  const bool is_within = shard.amax_offset >= 0 && shard.amax_offset < shard.amax_elements;
  TESSERA_CHECK(is_within || (shard.amax_elements == 0 && shard.amax_offset == 0),
                "update: the shard begins at element {} of a matrix of {} elements, expected an element of the matrix",
                shard.amax_offset, shard.amax_elements);
  TESSERA_CHECK(shard.weight != shard.master || shard.weight == nullptr || shard.weight_type == shard.master_type,
                "update: the weight shares the master's memory, expected one type, got weight {} and master {}",
                name_of(shard.weight_type), name_of(shard.master_type));
  TESSERA_CHECK(!shard.is_split || (are_representable(shard) && (shard.weight || shard.count == 0)),
                "update: a split master in {} with {} in {}, expected a master in fp32 with a weight in bf16",
                name_of(shard.master_type), shard.weight ? "a weight" : "no weight", name_of(shard.weight_type));
  TESSERA_CHECK(!shard.is_split || shard.amax == nullptr, "update: a split master has an amax, expected none");
}

// The matrices that the shard touches are the rows of one matrix whose tiles are rows.
void raise_amaxes(const UpdateShard& shard) {
  const std::int64_t begin = shard.amax_offset, end = begin + shard.count;
  const std::int64_t elements = shard.amax_elements == 0 ? end : shard.amax_elements;
  if (begin == end) return;
  const std::int64_t matrices = (end + elements - 1) / elements;
  quant::take_amaxes({shard.master, shard.master_type}, {.rows = matrices, .cols = elements},
                     {.rows = 1, .cols = elements}, {.begin = begin, .end = end},
                     {shard.amax, static_cast<std::size_t>(matrices)});
}

std::int64_t state_bytes(const UpdateRule& rule, std::int64_t elements, quant::DType master) {
  std::int64_t bytes = 0;
  for (const StatePlane& plane : rule.planes(master))
    bytes += elements * static_cast<std::int64_t>(quant::size_of(plane.type));
  return bytes;
}

}  // namespace tessera::ops
