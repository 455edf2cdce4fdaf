#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/ops/adamw.h"
#include "tessera/ops/cast.h"
#include "tessera/ops/element.h"

namespace tessera::ops {
namespace {

// The scalars of one step, worked out in fp64 as torch does and rounded once to the arithmetic type.
template <typename A>
struct StepScalars {
  A decay, beta1_rest, beta2, beta2_rest, step_size, root_correction2, eps, gradient_scale;

  explicit StepScalars(const AdamW& options) {
    const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(options.step));
    const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(options.step));
    decay = static_cast<A>(1 - options.lr * options.weight_decay);
    beta1_rest = static_cast<A>(1 - options.beta1);
    beta2 = static_cast<A>(options.beta2);
    beta2_rest = static_cast<A>(1 - options.beta2);
    step_size = static_cast<A>(options.lr / correction1);
    root_correction2 = static_cast<A>(std::sqrt(correction2));
    eps = static_cast<A>(options.eps);
    gradient_scale = static_cast<A>(options.gradient_scale);
  }
};

template <typename A>
struct Range {
  A* __restrict master;
  A* __restrict exp_avg;
  A* __restrict exp_avg_sq;
  const A* __restrict gradient;
  std::int64_t count;
};

template <typename A>
void update(const StepScalars<A>& s, const Range<A>& range) {
  A* __restrict master = range.master;
  A* __restrict exp_avg = range.exp_avg;
  A* __restrict exp_avg_sq = range.exp_avg_sq;
  const A* __restrict gradient = range.gradient;
  for (std::int64_t i = 0; i < range.count; ++i) {
    const A g = gradient[i] * s.gradient_scale;
    const A m = std::fma(s.beta1_rest, g - exp_avg[i], exp_avg[i]);
    const A v = std::fma(s.beta2_rest * g, g, s.beta2 * exp_avg_sq[i]);
    const A denominator = std::sqrt(v) / s.root_correction2 + s.eps;
    master[i] = master[i] * s.decay - s.step_size * (m / denominator);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
  }
}

constexpr std::int64_t kChunk = 1024;  // elements whose gradient is widened at a time

template <typename A>
void adamw_typed(const AdamW& options, const AdamWBuffers& buffers, base::DType type) {
  const StepScalars<A> scalars(options);
  std::array<A, kChunk> widened;
  for (std::int64_t start = 0; start < buffers.count; start += kChunk) {
    const std::int64_t count = std::min(kChunk, buffers.count - start);
    const auto at = [start](void* data, base::DType element) {
      return static_cast<std::byte*>(data) + static_cast<std::size_t>(start) * base::size_of(element);
    };
    const A* gradient = static_cast<const A*>(buffers.gradient) + start;
    if (buffers.gradient_type != type) {
      cast(at(const_cast<void*>(buffers.gradient), buffers.gradient_type), buffers.gradient_type, widened.data(), type,
           count);
      gradient = widened.data();
    }
    A* master = static_cast<A*>(buffers.master) + start;
    update(scalars, Range<A>{.master = master,
                             .exp_avg = static_cast<A*>(buffers.exp_avg) + start,
                             .exp_avg_sq = static_cast<A*>(buffers.exp_avg_sq) + start,
                             .gradient = gradient,
                             .count = count});
    if (buffers.weight != nullptr && buffers.weight != buffers.master)
      cast(master, type, at(buffers.weight, buffers.weight_type), buffers.weight_type, count);
  }
}

void check(const AdamW& options, const AdamWBuffers& buffers) {
  TESSERA_CHECK(options.step >= 1, "adamw: step {}: expected 1 or more", options.step);
  TESSERA_CHECK(buffers.count >= 0, "adamw: count {}: expected 0 or more", buffers.count);
  const bool present = buffers.master && buffers.gradient && buffers.exp_avg && buffers.exp_avg_sq;
  TESSERA_CHECK(present || buffers.count == 0, "adamw: master, gradient, exp_avg or exp_avg_sq is null for {} elements",
                buffers.count);
  TESSERA_CHECK(
      buffers.weight != buffers.master || buffers.weight == nullptr || buffers.weight_type == buffers.master_type,
      "adamw: the weight shares the master's memory as {}, the master is {}", base::name_of(buffers.weight_type),
      base::name_of(buffers.master_type));
}

}  // namespace

void adamw(const AdamW& options, const AdamWBuffers& buffers) {
  check(options, buffers);
  dispatch_accumulator(buffers.master_type,
                       [&](auto element) { adamw_typed<decltype(element)>(options, buffers, buffers.master_type); });
}

void row_square_sums(const void* values, base::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
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
