#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/norm/rms_norm_kernels.h"
#include "tessera/quant/elementwise.h"

namespace tessera::ops::cpu {
namespace {

// Returns the rows of a sum of parts. A row is valid until the next call of row().
template <typename T>
class SummedRows {
 public:
  SummedRows(const SumOfParts& sum, const RmsNormShape& shape)
      : sum_(sum), shape_(shape), buffer_(static_cast<std::size_t>(sum.count > 1 ? shape.hidden : 0)) {}

  const T* row(std::int64_t token) {
    const std::int64_t at = token * shape_.hidden;
    if (sum_.count == 1) return static_cast<const T*>(sum_.parts[0]) + at;
    std::array<const void*, kMaxSummedParts> rows{};
    for (int part = 0; part < sum_.count; ++part) rows[part] = static_cast<const T*>(sum_.parts[part]) + at;
    const std::span<const void* const> parts(rows.data(), static_cast<std::size_t>(sum_.count));
    if constexpr (std::is_same_v<T, quant::bfloat16>)
      quant::ordered_sum_bfloat16(buffer_.data(), parts, shape_.hidden);
    else
      quant::ordered_sum(buffer_.data(), shape_.type, /*accumulate=*/false, parts, shape_.type, shape_.hidden);
    return buffer_.data();
  }

 private:
  const SumOfParts& sum_;
  const RmsNormShape& shape_;
  std::vector<T> buffer_;
};

template <typename T>
Accumulator<T> reciprocal_rms(const T* row, std::int64_t hidden, double eps) {
  using A = Accumulator<T>;
  const A squares = lane_sum<A>(hidden, [row](std::int64_t i) {
    const A value = load(row[i]);
    return value * value;
  });
  return A{1} / std::sqrt(squares / static_cast<A>(hidden) + static_cast<A>(eps));
}

template <typename T>
void add_rows(const T* __restrict x, const T* __restrict residual, T* __restrict sum, std::int64_t hidden) {
  for (std::int64_t i = 0; i < hidden; ++i) sum[i] = round_to<T>(load(x[i]) + load(residual[i]));
}

// Calls function(i, factor) for each column i of a row.
template <typename A, typename Function>
void for_factors(const DropoutMask& mask, std::int64_t row, std::int64_t hidden, Function&& function) {
  const std::uint32_t step = mask.step();
  for (std::int64_t first = 0; first < hidden; first += DropoutMask::kColumns) {
    A factors[DropoutMask::kColumns];
    mask.factors(step, row, static_cast<std::uint32_t>(first / DropoutMask::kColumns), factors);
    const std::int64_t end = std::min<std::int64_t>(first + DropoutMask::kColumns, hidden);
    for (std::int64_t i = first; i < end; ++i) function(i, factors[i - first]);
  }
}

template <typename T>
void drop_and_add_rows(const DropoutMask& mask, std::int64_t row, const T* x, const T* residual, T* sum,
                       std::int64_t hidden) {
  using A = Accumulator<T>;
  for_factors<A>(mask, row, hidden, [&](std::int64_t i, A factor) {
    const A kept = load(x[i]) * factor;
    sum[i] = round_to<T>(residual == nullptr ? kept : kept + load(residual[i]));
  });
}

template <typename T>
void drop_row(const DropoutMask& mask, std::int64_t row, const T* dx, T* dinput, std::int64_t hidden) {
  using A = Accumulator<T>;
  for_factors<A>(mask, row, hidden, [&](std::int64_t i, A factor) { dinput[i] = round_to<T>(load(dx[i]) * factor); });
}

template <typename T>
struct NormBackwardRow {
  const T* __restrict dy;
  const T* __restrict dsum;
  const T* __restrict sum;
  const T* __restrict weight;
  T* __restrict dx;
  Accumulator<T>* __restrict dweight;
  Accumulator<T> rstd;
  std::int64_t hidden;
};

// y_i = x_i r w_i with r = rstd(x), so dx_i = r w_i dy_i - x_i r^3 / hidden * sum_j(w_j dy_j x_j).
template <typename T>
void backward_row(const NormBackwardRow<T>& row) {
  using A = Accumulator<T>;
  const T* __restrict dy = row.dy;
  const T* __restrict sum = row.sum;
  const T* __restrict weight = row.weight;
  const T* __restrict dsum = row.dsum;
  T* __restrict dx = row.dx;
  A* __restrict dweight = row.dweight;
  const A rstd = row.rstd;
  const A product =
      lane_sum<A>(row.hidden, [&](std::int64_t i) { return load(dy[i]) * load(weight[i]) * load(sum[i]); });
  const A factor = product * rstd * rstd * rstd / static_cast<A>(row.hidden);
  for (std::int64_t i = 0; i < row.hidden; ++i) dweight[i] += load(dy[i]) * (load(sum[i]) * rstd);
  if (dsum == nullptr) {
    for (std::int64_t i = 0; i < row.hidden; ++i)
      dx[i] = round_to<T>(load(dy[i]) * load(weight[i]) * rstd - load(sum[i]) * factor);
  } else {
    for (std::int64_t i = 0; i < row.hidden; ++i)
      dx[i] = round_to<T>((load(dy[i]) * load(weight[i]) * rstd - load(sum[i]) * factor) + load(dsum[i]));
  }
}

template <typename T>
void backward(const RmsNormShape& shape, const RmsNormBackward& a) {
  using A = Accumulator<T>;
  A* dweight = static_cast<A*>(a.dweight);
  SummedRows<T> dy(a.dy, shape);
  std::fill_n(dweight, shape.hidden, A{0});
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    const std::int64_t at = token * shape.hidden;
    backward_row(NormBackwardRow<T>{.dy = dy.row(token),
                                    .dsum = a.dsum == nullptr ? nullptr : static_cast<const T*>(a.dsum) + at,
                                    .sum = static_cast<const T*>(a.sum) + at,
                                    .weight = static_cast<const T*>(a.weight),
                                    .dx = static_cast<T*>(a.dx) + at,
                                    .dweight = dweight,
                                    .rstd = static_cast<const A*>(a.rstd)[token],
                                    .hidden = shape.hidden});
    if (a.dropout.drops())
      drop_row(DropoutMask(a.dropout), token, static_cast<const T*>(a.dx) + at, static_cast<T*>(a.dinput) + at,
               shape.hidden);
  }
}

}  // namespace

void rms_norm_statistics(const RmsNormShape& shape, const RmsNormStatistics& a) {
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    SummedRows<T> x(a.x, shape);
    for (std::int64_t token = 0; token < shape.tokens; ++token) {
      const std::int64_t at = token * shape.hidden;
      const T* row = x.row(token);
      const T* residual = a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + at;
      if (T* sum = a.sum == nullptr ? nullptr : static_cast<T*>(a.sum) + at; sum != nullptr) {
        if (a.dropout.drops())
          drop_and_add_rows(DropoutMask(a.dropout), token, row, residual, sum, shape.hidden);
        else if (residual != nullptr)
          add_rows(row, residual, sum, shape.hidden);
        else
          std::copy_n(row, shape.hidden, sum);
        row = sum;
      }
      static_cast<Accumulator<T>*>(a.rstd)[token] = reciprocal_rms(row, shape.hidden, a.eps);
    }
  });
}

void rms_norm_apply(const RmsNormShape& shape, const RmsNormApply& a) {
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    const T* __restrict weight = static_cast<const T*>(a.weight);
    for (std::int64_t token = 0; token < shape.tokens; ++token) {
      const T* __restrict sum = static_cast<const T*>(a.sum) + token * shape.hidden;
      T* __restrict y = static_cast<T*>(a.y) + token * shape.hidden;
      const auto rstd = static_cast<const Accumulator<T>*>(a.rstd)[token];
      for (std::int64_t i = 0; i < shape.hidden; ++i) y[i] = round_to<T>(load(sum[i]) * rstd * load(weight[i]));
    }
  });
}

void rms_norm_backward(const RmsNormShape& shape, const RmsNormBackward& a) {
  dispatch_floating(shape.type, [&](auto element) { backward<decltype(element)>(shape, a); });
}

}  // namespace tessera::ops::cpu
