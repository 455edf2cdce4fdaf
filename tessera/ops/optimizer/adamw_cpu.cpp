#include <algorithm>
#include <array>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/adamw_element.h"
#include "tessera/quant/elementwise.h"

namespace tessera::ops {
namespace {

// A is the type of the master and of the arithmetic, M the type of the moments.
template <typename A, typename M>
struct Range {
  A* __restrict master;
  M* __restrict exp_avg;
  M* __restrict exp_avg_sq;
  const A* __restrict gradient;
  std::int64_t count;
};

template <typename A>
void update(const TypedScalars<A>& scalars, const Range<A, A>& range) {
  A* __restrict master = range.master;
  A* __restrict exp_avg = range.exp_avg;
  A* __restrict exp_avg_sq = range.exp_avg_sq;
  const A* __restrict gradient = range.gradient;
  for (std::int64_t i = 0; i < range.count; ++i) {
    const AdamWElement<A> next = updated(scalars, {master[i], exp_avg[i], exp_avg_sq[i]}, gradient[i]);
    master[i] = next.master;
    exp_avg[i] = next.exp_avg;
    exp_avg_sq[i] = next.exp_avg_sq;
  }
}

// `start` is the number of the range's first element in its shard.
void update_rounded(const TypedScalars<float>& scalars, const Range<float, quant::bfloat16>& range,
                    const UpdateShard& shard, std::int64_t start, std::int64_t number) {
  StateBits bits(shard.rounding_key, number);
  for (std::int64_t i = 0; i < range.count; ++i) {
    const AdamWElement<float> next = updated(
        scalars, {range.master[i], static_cast<float>(range.exp_avg[i]), static_cast<float>(range.exp_avg_sq[i])},
        range.gradient[i]);
    const std::uint32_t word = bits.word(shard.indices[start + i]);
    range.master[i] = next.master;
    range.exp_avg[i] = round_stochastically(next.exp_avg, word);
    range.exp_avg_sq[i] = round_stochastically(next.exp_avg_sq, word >> 16);
  }
}

constexpr std::int64_t kChunk = 1024;  // elements whose gradients are widened together

template <typename A, typename M>
void adamw_typed(const StepScalars& of_step, double gradient_scale, const UpdateShard& shard) {
  const quant::DType type = shard.master_type;
  const TypedScalars<A> scalars(of_step, gradient_scale);
  std::array<A, kChunk> widened, joined;
  for (std::int64_t start = 0; start < shard.count; start += kChunk) {
    const std::int64_t count = std::min(kChunk, shard.count - start);
    const auto at = [start](void* data, quant::DType element) {
      return static_cast<std::byte*>(data) + static_cast<std::size_t>(start) * quant::size_of(element);
    };
    const A* gradient = static_cast<const A*>(shard.gradient) + start;
    if (shard.gradient_type != type) {
      quant::cast(at(const_cast<void*>(shard.gradient), shard.gradient_type), shard.gradient_type, widened.data(), type,
                  count);
      gradient = widened.data();
    }
    A* master = shard.is_split ? joined.data() : static_cast<A*>(shard.master) + start;
    if constexpr (std::is_same_v<A, float>)
      if (shard.is_split) join_masters(split_parts(shard, start), count, master);
    const Range<A, M> range{.master = master,
                            .exp_avg = static_cast<M*>(shard.planes[0]) + start,
                            .exp_avg_sq = static_cast<M*>(shard.planes[1]) + start,
                            .gradient = gradient,
                            .count = count};
    if constexpr (std::is_same_v<M, A>)
      update(scalars, range);
    else
      update_rounded(scalars, range, shard, start, of_step.number);
    if constexpr (std::is_same_v<A, float>) {
      if (are_representable(shard)) make_representable(master, count);
      if (shard.is_split) split_masters(master, count, split_parts(shard, start));
    }
    if (!shard.is_split && shard.weight != nullptr && shard.weight != shard.master)
      quant::cast(master, type, at(shard.weight, shard.weight_type), shard.weight_type, count);
  }
}

}  // namespace

void adamw(const StepScalars& scalars, const UpdateShard& shard, const Clip& clip, bool has_bf16_moments) {
  check_shard(shard, 2);
  if (clip.applies != 0 && has_bf16_moments) {
    TESSERA_CHECK(shard.master_type == quant::DType::fp32, "adamw: moments in bf16 for a master in {}, expected fp32",
                  name_of(shard.master_type));
    adamw_typed<float, quant::bfloat16>(scalars, clip.factor, shard);
  } else if (clip.applies != 0) {
    dispatch_accumulator(shard.master_type, [&](auto element) {
      adamw_typed<decltype(element), decltype(element)>(scalars, clip.factor, shard);
    });
  }
  if (shard.amax != nullptr) raise_amaxes(shard);
}

}  // namespace tessera::ops
