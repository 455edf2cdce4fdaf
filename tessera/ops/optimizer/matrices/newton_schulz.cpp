#include "tessera/ops/optimizer/matrices/newton_schulz.h"

#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/optimizer/square_sums.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

double norm_of(const void* u, std::int64_t rows, std::int64_t cols, quant::DType type) {
  std::vector<double> squares(static_cast<std::size_t>(rows));
  row_square_sums(u, type, rows, cols, cols, squares.data());
  double sum = 0;
  for (const double square : squares) sum += square;
  return std::sqrt(sum);
}

// Rounds to T and returns the number in its accumulator type A.
template <typename T, typename A>
A rounded(A value) {
  return static_cast<A>(load(round_to<T>(value)));
}

// The iterations of one matrix of elements T. Products are computed in the accumulator type A, in which every number of
// T is exact. Tensors that ATen allocates have the alignment that its products need for equal bits.
template <typename T>
class Iterations {
  using A = Accumulator<T>;

 public:
  Iterations(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols), is_tall_(rows > cols) {
    const std::int64_t m = std::min(rows, cols), n = std::max(rows, cols);
    const at::ScalarType type = c10::CppTypeToScalarType<A>::value;
    x_ = make({m, n}, type);
    s_ = make({m, m}, type);
    square_ = make({m, m}, type);
    step_ = make({m, n}, type);
  }

  void run(const T* u, T* x, double norm, int steps) {
    const A divisor = std::max(static_cast<A>(norm), static_cast<A>(kMinMatrixNorm));
    each([&](std::int64_t at, std::int64_t i) { data(x_)[i] = rounded<T>(static_cast<A>(load(u[at])) / divisor); });
    for (int step = 0; step < steps; ++step) {
      product(s_, x_, x_.t());
      round(s_);
      product(square_, s_, s_);
      combine(kNewtonSchulzB, s_, kNewtonSchulzC, square_);  // P, in square_
      product(step_, square_, x_);
      combine(kNewtonSchulzA, x_, 1.0, step_);
      std::swap(x_, step_);
    }
    each([&](std::int64_t at, std::int64_t i) { x[at] = round_to<T>(data(x_)[i]); });
  }

 private:
  static A* data(at::Tensor& tensor) { return tensor.mutable_data_ptr<A>(); }
  static void product(at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
    at::mm_out(out, left, right);
  }
  static void round(at::Tensor& tensor) {
    A* values = data(tensor);
    for (std::int64_t i = 0; i < tensor.numel(); ++i) values[i] = rounded<T>(values[i]);
  }
  // sum = alpha * sum + beta * x, rounded once.
  static void combine(double beta, at::Tensor& x, double alpha, at::Tensor& sum) {
    const A of_x = static_cast<A>(beta), of_sum = static_cast<A>(alpha);
    const A* const terms = data(x);
    A* const sums = data(sum);
    for (std::int64_t i = 0; i < sum.numel(); ++i) sums[i] = rounded<T>(of_sum * sums[i] + of_x * terms[i]);
  }
  // Calls visit(position in the matrix, position in x_) for each element.
  template <typename Visit>
  void each(Visit visit) {
    for (std::int64_t row = 0; row < rows_; ++row)
      for (std::int64_t col = 0; col < cols_; ++col)
        visit(row * cols_ + col, is_tall_ ? col * rows_ + row : row * cols_ + col);
  }

  std::int64_t rows_, cols_;
  bool is_tall_;
  at::Tensor x_, s_, square_, step_;
};

}  // namespace

double newton_schulz_flops(std::int64_t rows, std::int64_t cols, int steps) {
  const auto m = static_cast<double>(std::min(rows, cols)), n = static_cast<double>(std::max(rows, cols));
  return steps * (4 * m * m * n + 2 * m * m * m);
}

void newton_schulz(const MatrixBatch& batch, int steps) {
  TESSERA_CHECK(batch.count >= 0 && batch.rows >= 0 && batch.cols >= 0 && steps >= 0,
                "newton_schulz: {} matrices [{}, {}] and {} steps, expected 0 or more", batch.count, batch.rows,
                batch.cols, steps);
  if (batch.rows == 0 || batch.cols == 0) return;
  dispatch_floating(batch.type, [&](auto element) {
    using T = decltype(element);
    Iterations<T> iterations(batch.rows, batch.cols);
    for (std::int64_t i = 0; i < batch.count; ++i) {
      const std::int64_t first = i * (batch.stride > 0 ? batch.stride : batch.rows * batch.cols);
      const T* const u = static_cast<const T*>(batch.u) + first;
      iterations.run(u, static_cast<T*>(batch.x) + first, norm_of(u, batch.rows, batch.cols, batch.type), steps);
    }
  });
}

}  // namespace tessera::ops
