#include <algorithm>
#include <cstddef>
#include <utility>

#include "tessera/base/ceil_div.h"
#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/ops/gemm/gemm_device.h"
#include "tessera/ops/optimizer/matrices/newton_schulz.h"
#include "tessera/ops/optimizer/matrices/newton_schulz_kernels.h"
#include "tessera/ops/optimizer/square_sums.h"

namespace tessera::ops {
namespace {

using base::cuda_only;

// On a GPU, matrices are iterated together as long as their scratch memory is below this number of bytes.
constexpr std::int64_t kGroupBytes = std::int64_t{256} << 20;
constexpr std::int64_t kStrideBytes = 256;  // cuBLASLt's products of several matrices expect multiples of it

std::int64_t padded(std::int64_t elements, quant::DType type) {
  const std::int64_t unit = kStrideBytes / static_cast<std::int64_t>(quant::size_of(type));
  return base::ceil_div(elements, unit) * unit;
}

// The ranges of the scratch of a group of matrices, in bytes.
struct ScratchRanges {
  explicit ScratchRanges(const MatrixBatch& batch, std::int64_t group)
      : m(std::min(batch.rows, batch.cols)),
        n(std::max(batch.rows, batch.cols)),
        x_stride(padded(m * n, batch.type)),
        s_stride(padded(m * m, batch.type)) {
    const auto element = static_cast<std::int64_t>(quant::size_of(batch.type));
    const auto number = static_cast<std::int64_t>(sizeof(double));
    x = take(group * x_stride * element), next = take(group * x_stride * element);
    s = take(group * s_stride * element), p = take(group * s_stride * element);
    row_sums = take(group * batch.rows * number), norms = take(group * number);
    products = take(kProductScratch);
  }

  std::int64_t m, n, x_stride, s_stride;  // dimensions, and strides between matrices in elements
  std::int64_t x = 0, next = 0, s = 0, p = 0, row_sums = 0, norms = 0, products = 0;  // offsets
  std::int64_t bytes = 0;

 private:
  std::int64_t take(std::int64_t more) { return std::exchange(bytes, bytes + base::align_up(more)); }
};

// Returns the number of matrices that are iterated together.
std::int64_t group_of(const MatrixBatch& batch) {
  const std::int64_t m = std::min(batch.rows, batch.cols), n = std::max(batch.rows, batch.cols);
  const std::int64_t bytes = 2 * (padded(m * n, batch.type) + padded(m * m, batch.type)) *
                             static_cast<std::int64_t>(quant::size_of(batch.type));
  return std::clamp<std::int64_t>(kGroupBytes / bytes, 1, batch.count);
}

bool is_empty(const MatrixBatch& batch) {
  return batch.count == 0 || batch.rows == 0 || batch.cols == 0;
}

// The iterations of the matrices of a group on a GPU.
class DeviceIterations {
 public:
  DeviceIterations(const MatrixBatch& batch, const ScratchRanges& ranges, base::CudaStream stream)
      : type_(batch.type),
        m_(ranges.m),
        n_(ranges.n),
        x_stride_(ranges.x_stride),
        s_stride_(ranges.s_stride),
        stream_(stream),
        x_(batch.scratch + ranges.x),
        next_(batch.scratch + ranges.next),
        s_(batch.scratch + ranges.s),
        p_(batch.scratch + ranges.p),
        products_(batch.scratch + ranges.products),
        row_sums_(reinterpret_cast<double*>(batch.scratch + ranges.row_sums)),
        norms_(reinterpret_cast<double*>(batch.scratch + ranges.norms)) {}

  // Iterates the matrices of a batch, at most as many as a group has.
  void run(const MatrixBatch& batch, int steps) {
    const cuda::IteratedMatrices matrices{.type = type_,
                                          .count = batch.count,
                                          .rows = batch.rows,
                                          .cols = batch.cols,
                                          .stride = batch.stride,
                                          .x_stride = x_stride_};
    for (std::int64_t i = 0; i < batch.count; ++i)
      cuda_only<cuda::row_square_sums>(element(batch.u, i * batch.stride), type_, batch.rows, batch.cols, batch.cols,
                                       row_sums_ + i * batch.rows, stream_, /*states=*/nullptr);
    cuda_only<cuda::matrix_norms>(matrices, row_sums_, norms_, stream_);
    cuda_only<cuda::begin_iterations>(matrices, batch.u, norms_, x_, stream_);
    for (int step = 0; step < steps; ++step) {
      multiply(batch.count, {.left = x_, .right = x_, .right_transposed = true, .result = s_});
      multiply(batch.count, {.left = s_,
                             .right = s_,
                             .result = p_,
                             .factor = kNewtonSchulzC,
                             .addend = s_,
                             .addend_factor = kNewtonSchulzB});
      multiply(batch.count, {.left = p_, .right = x_, .result = next_, .addend = x_, .addend_factor = kNewtonSchulzA});
      std::swap(x_, next_);
    }
    cuda_only<cuda::end_iterations>(matrices, x_, batch.x, stream_);
  }

 private:
  struct Step {
    const std::byte *left = nullptr, *right = nullptr;
    bool right_transposed = false;
    std::byte* result = nullptr;
    double factor = 1;
    const std::byte* addend = nullptr;
    double addend_factor = 0;
  };
  const void* element(const void* data, std::int64_t at) const {
    return static_cast<const std::byte*>(data) + static_cast<std::size_t>(at) * quant::size_of(type_);
  }
  std::int64_t stride_of(const std::byte* matrices) const {
    return matrices == x_ || matrices == next_ ? x_stride_ : s_stride_;
  }
  void multiply(std::int64_t count, const Step& step) {
    cuda_only<cuda::multiply_batch>({.product = {.rows = m_,
                                                 .cols = step.result == next_ ? n_ : m_,
                                                 .inner = step.right_transposed ? n_ : m_,
                                                 .type = type_,
                                                 .result_type = type_,
                                                 .left = step.left,
                                                 .right = step.right,
                                                 .right_transposed = step.right_transposed,
                                                 .result = step.result},
                                     .count = count,
                                     .left_stride = stride_of(step.left),
                                     .right_stride = stride_of(step.right),
                                     .result_stride = stride_of(step.result),
                                     .factor = step.factor,
                                     .addend = step.addend,
                                     .addend_factor = step.addend_factor},
                                    products_, stream_);
  }

  quant::DType type_;
  std::int64_t m_, n_, x_stride_, s_stride_;
  base::CudaStream stream_;
  std::byte *x_, *next_, *s_, *p_, *products_;
  double *row_sums_, *norms_;
};

}  // namespace

std::int64_t newton_schulz_scratch(const MatrixBatch& batch) {
  return is_empty(batch) ? 0 : ScratchRanges(batch, group_of(batch)).bytes;
}

void newton_schulz_on_device(const MatrixBatch& whole, int steps, base::CudaStream stream) {
  MatrixBatch batch = whole;
  if (is_empty(batch)) return;
  TESSERA_CHECK(batch.scratch != nullptr, "iterations of {} matrices on a device: the scratch is null", batch.count);
  if (batch.stride == 0) batch.stride = batch.rows * batch.cols;
  const std::int64_t most = group_of(batch);
  for (std::int64_t first = 0; first < batch.count; first += most) {
    MatrixBatch group = batch;
    const std::size_t offset = static_cast<std::size_t>(first * batch.stride) * quant::size_of(batch.type);
    group.u = static_cast<const std::byte*>(batch.u) + offset;
    group.x = static_cast<std::byte*>(batch.x) + offset;
    group.count = std::min(most, batch.count - first);
    DeviceIterations(group, ScratchRanges(batch, most), stream).run(group, steps);
  }
}

}  // namespace tessera::ops
