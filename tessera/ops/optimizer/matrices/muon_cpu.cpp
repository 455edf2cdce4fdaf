#include <algorithm>
#include <array>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/optimizer/matrices/muon_element.h"
#include "tessera/quant/elementwise.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kMuonChunk = 1024;  // elements that are converted together

// Returns the elements [start, start + count) in type A. They are converted into `widened` if they have another type.
template <typename A>
const A* widen(const void* data, quant::DType type, quant::DType to, std::int64_t start, std::int64_t count,
               std::array<A, kMuonChunk>& widened) {
  if (type == to) return static_cast<const A*>(data) + start;
  quant::cast(static_cast<const std::byte*>(data) + static_cast<std::size_t>(start) * quant::size_of(type), type,
              widened.data(), to, count);
  return widened.data();
}

// M is the type of the momentum.
template <typename A, typename M>
void directions_typed(const MuonScalars& scalars, double gradient_scale, const DirectionShard& shard) {
  const MuonFactors<A> next(scalars, gradient_scale);
  StateBits bits(shard.rounding_key, scalars.number);
  std::array<A, kMuonChunk> widened, u;
  for (std::int64_t start = 0; start < shard.count; start += kMuonChunk) {
    const std::int64_t count = std::min(kMuonChunk, shard.count - start);
    const A* const gradient = widen(shard.gradient, shard.gradient_type, shard.master_type, start, count, widened);
    M* const momentum = static_cast<M*>(shard.plane) + start;
    for (std::int64_t i = 0; i < count; ++i) {
      const MuonDirection<A> result = next(static_cast<A>(load(momentum[i])), gradient[i]);
      u[static_cast<std::size_t>(i)] = result.direction;
      if constexpr (std::is_same_v<M, A>)
        momentum[i] = result.momentum;
      else
        momentum[i] = round_stochastically(result.momentum, bits.word(shard.indices[start + i]));
    }
    quant::cast(u.data(), shard.master_type,
                static_cast<std::byte*>(shard.direction) +
                    static_cast<std::size_t>(start) * quant::size_of(shard.direction_type),
                shard.direction_type, count);
  }
}

template <typename A>
void update_typed(const MuonScalars& scalars, const UpdateShard& shard) {
  const A decay = static_cast<A>(scalars.decay), rate = static_cast<A>(scalars.rate * shard.factor);
  std::array<A, kMuonChunk> widened, joined;
  for (std::int64_t start = 0; start < shard.count; start += kMuonChunk) {
    const std::int64_t count = std::min(kMuonChunk, shard.count - start);
    const A* const x = widen(shard.gradient, shard.gradient_type, shard.master_type, start, count, widened);
    A* const master = shard.is_split ? joined.data() : static_cast<A*>(shard.master) + start;
    if constexpr (std::is_same_v<A, float>)
      if (shard.is_split) join_masters(split_parts(shard, start), count, master);
    for (std::int64_t i = 0; i < count; ++i) master[i] = master[i] * decay - rate * x[i];
    if constexpr (std::is_same_v<A, float>) {
      if (are_representable(shard)) make_representable(master, count);
      if (shard.is_split) split_masters(master, count, split_parts(shard, start));
    }
    if (!shard.is_split && shard.weight != nullptr && shard.weight != shard.master)
      quant::cast(
          master, shard.master_type,
          static_cast<std::byte*>(shard.weight) + static_cast<std::size_t>(start) * quant::size_of(shard.weight_type),
          shard.weight_type, count);
  }
}

}  // namespace

void muon_directions(const MuonScalars& scalars, const DirectionShard& shard, const Clip& clip,
                     bool has_bf16_momentum) {
  check_shard(shard);
  if (clip.applies == 0) return;
  if (has_bf16_momentum) {
    TESSERA_CHECK(shard.master_type == quant::DType::fp32, "muon: a momentum in bf16 for a master in {}, expected fp32",
                  name_of(shard.master_type));
    return directions_typed<float, quant::bfloat16>(scalars, clip.factor, shard);
  }
  dispatch_accumulator(shard.master_type, [&](auto element) {
    directions_typed<decltype(element), decltype(element)>(scalars, clip.factor, shard);
  });
}

void muon_update(const MuonScalars& scalars, const UpdateShard& shard, const Clip& clip) {
  check_shard(shard, 0);
  if (clip.applies != 0)
    dispatch_accumulator(shard.master_type, [&](auto element) { update_typed<decltype(element)>(scalars, shard); });
  if (shard.amax != nullptr) raise_amaxes(shard);
}

}  // namespace tessera::ops
