#include <algorithm>
#include <array>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/adamw_element.h"
#include "tessera/quant/elementwise.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::ops {
namespace {

template <typename A>
struct Range {
  A* __restrict master;
  A* __restrict exp_avg;
  A* __restrict exp_avg_sq;
  const A* __restrict gradient;
  std::int64_t count;
};

template <typename A>
void update(const TypedScalars<A>& scalars, const Range<A>& range) {
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

constexpr std::int64_t kChunk = 1024;  // elements whose gradients are widened together

template <typename A>
void adamw_typed(const AdamW& options, const AdamWBuffers& buffers, quant::DType type) {
  const TypedScalars<A> scalars(step_scalars(options), options.gradient_scale, buffers.decays);
  std::array<A, kChunk> widened;
  for (std::int64_t start = 0; start < buffers.count; start += kChunk) {
    const std::int64_t count = std::min(kChunk, buffers.count - start);
    const auto at = [start](void* data, quant::DType element) {
      return static_cast<std::byte*>(data) + static_cast<std::size_t>(start) * quant::size_of(element);
    };
    const A* gradient = static_cast<const A*>(buffers.gradient) + start;
    if (buffers.gradient_type != type) {
      quant::cast(at(const_cast<void*>(buffers.gradient), buffers.gradient_type), buffers.gradient_type, widened.data(),
                  type, count);
      gradient = widened.data();
    }
    A* master = static_cast<A*>(buffers.master) + start;
    update(scalars, Range<A>{.master = master,
                             .exp_avg = static_cast<A*>(buffers.exp_avg) + start,
                             .exp_avg_sq = static_cast<A*>(buffers.exp_avg_sq) + start,
                             .gradient = gradient,
                             .count = count});
    if (buffers.weight != nullptr && buffers.weight != buffers.master)
      quant::cast(master, type, at(buffers.weight, buffers.weight_type), buffers.weight_type, count);
  }
}

// Raises the amaxes of the matrices that the shard touches. The matrices are the rows of one matrix whose tiles are
// rows.
void raise_amaxes(const AdamWBuffers& buffers) {
  const std::int64_t begin = buffers.amax_offset, end = begin + buffers.count;
  const std::int64_t elements = buffers.amax_elements == 0 ? end : buffers.amax_elements;
  if (begin == end) return;
  const std::int64_t matrices = (end + elements - 1) / elements;
  quant::take_amaxes({buffers.master, buffers.master_type}, {.rows = matrices, .cols = elements},
                     {.rows = 1, .cols = elements}, {.begin = begin, .end = end},
                     {buffers.amax, static_cast<std::size_t>(matrices)});
}

}  // namespace

void adamw(const AdamW& options, const AdamWBuffers& buffers) {
  check_adamw(buffers);
  dispatch_accumulator(buffers.master_type,
                       [&](auto element) { adamw_typed<decltype(element)>(options, buffers, buffers.master_type); });
  if (buffers.amax != nullptr) raise_amaxes(buffers);
}

void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums) {
  dispatch_floating(type, [&](auto element) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto* data = static_cast<const decltype(element)*>(values) + row * stride;
      sums[row] = lane_sum<double>(cols, [data](std::int64_t i) {
        const double value = load(data[i]);
        return value * value;
      });
    }
  });
}

}  // namespace tessera::ops
