#include <algorithm>
#include <cstddef>
#include <utility>

#include "tessera/base/ceil_div.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/gemm_device.h"
#include "tessera/ops/optimizer/matrices/newton_schulz.h"
#include "tessera/ops/optimizer/matrices/newton_schulz_kernels.h"
#include "tessera/ops/optimizer/square_sums.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

// On a GPU, matrices are iterated together as long as their scratch memory is below this number of bytes.
constexpr std::int64_t kGroupBytes = std::int64_t{256} << 20;
constexpr std::int64_t kStrideBytes = 256;  // cuBLASLt's products of several matrices expect multiples of it

std::int64_t padded(std::int64_t elements, quant::DType type) {
  const std::int64_t unit = kStrideBytes / static_cast<std::int64_t>(quant::size_of(type));
  return base::ceil_div(elements, unit) * unit;
}

// The iterations of the matrices of a group on a GPU.
class DeviceIterations {
 public:
  DeviceIterations(const MatrixBatch& batch, std::int64_t group, base::CudaStream stream)
      : type_(batch.type),
        m_(std::min(batch.rows, batch.cols)),
        n_(std::max(batch.rows, batch.cols)),
        x_stride_(padded(m_ * n_, type_)),
        s_stride_(padded(m_ * m_, type_)),
        stream_(stream) {
    const at::ScalarType type = to_scalar_type(type_);
    x_ = make({group, x_stride_}, type, at::kCUDA);
    next_ = make({group, x_stride_}, type, at::kCUDA);
    s_ = make({group, s_stride_}, type, at::kCUDA);
    p_ = make({group, s_stride_}, type, at::kCUDA);
    row_sums_ = make({group * batch.rows}, at::kDouble, at::kCUDA);
    norms_ = make({group}, at::kDouble, at::kCUDA);
    scratch_ = make({kProductScratch}, at::kByte, at::kCUDA);
  }
  static std::int64_t bytes(const MatrixBatch& batch) {
    const std::int64_t m = std::min(batch.rows, batch.cols), n = std::max(batch.rows, batch.cols);
    return 2 * (padded(m * n, batch.type) + padded(m * m, batch.type)) *
           static_cast<std::int64_t>(quant::size_of(batch.type));
  }

  // Iterates the matrices of a batch, at most as many as a group has.
  void run(const MatrixBatch& batch, int steps) {
    const cuda::IteratedMatrices matrices{.type = type_,
                                          .count = batch.count,
                                          .rows = batch.rows,
                                          .cols = batch.cols,
                                          .stride = batch.stride,
                                          .x_stride = x_stride_};
    auto* const sums = row_sums_.mutable_data_ptr<double>();
    auto* const norms = norms_.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < batch.count; ++i)
      cuda_only<cuda::row_square_sums>(element(batch.u, i * batch.stride), type_, batch.rows, batch.cols, batch.cols,
                                       sums + i * batch.rows, stream_, /*states=*/nullptr);
    cuda_only<cuda::matrix_norms>(matrices, sums, norms, stream_);
    cuda_only<cuda::begin_iterations>(matrices, batch.u, norms, x_.mutable_data_ptr(), stream_);
    for (int step = 0; step < steps; ++step) {
      multiply(batch.count, {.left = &x_, .right = &x_, .right_transposed = true, .result = &s_});
      multiply(batch.count, {.left = &s_,
                             .right = &s_,
                             .result = &p_,
                             .factor = kNewtonSchulzC,
                             .addend = &s_,
                             .addend_factor = kNewtonSchulzB});
      multiply(batch.count,
               {.left = &p_, .right = &x_, .result = &next_, .addend = &x_, .addend_factor = kNewtonSchulzA});
      std::swap(x_, next_);
    }
    cuda_only<cuda::end_iterations>(matrices, x_.const_data_ptr(), batch.x, stream_);
  }

 private:
  struct Step {
    const at::Tensor *left = nullptr, *right = nullptr;
    bool right_transposed = false;
    at::Tensor* result = nullptr;
    double factor = 1;
    const at::Tensor* addend = nullptr;
    double addend_factor = 0;
  };
  const void* element(const void* data, std::int64_t at) const {
    return static_cast<const std::byte*>(data) + static_cast<std::size_t>(at) * quant::size_of(type_);
  }
  std::int64_t stride_of(const at::Tensor& matrices) const { return matrices.size(1); }
  void multiply(std::int64_t count, const Step& step) {
    const bool is_wide = step.result == &next_;  // [m, n], otherwise [m, m]
    cuda_only<cuda::multiply_batch>({.product = {.rows = m_,
                                                 .cols = is_wide ? n_ : m_,
                                                 .inner = step.right_transposed ? n_ : m_,
                                                 .type = type_,
                                                 .result_type = type_,
                                                 .left = step.left->const_data_ptr(),
                                                 .right = step.right->const_data_ptr(),
                                                 .right_transposed = step.right_transposed,
                                                 .result = step.result->mutable_data_ptr()},
                                     .count = count,
                                     .left_stride = stride_of(*step.left),
                                     .right_stride = stride_of(*step.right),
                                     .result_stride = stride_of(*step.result),
                                     .factor = step.factor,
                                     .addend = step.addend == nullptr ? nullptr : step.addend->const_data_ptr(),
                                     .addend_factor = step.addend_factor},
                                    scratch_.mutable_data_ptr(), stream_);
  }

  quant::DType type_;
  std::int64_t m_, n_, x_stride_, s_stride_;  // strides between matrices, in elements
  base::CudaStream stream_;
  at::Tensor x_, next_, s_, p_, row_sums_, norms_, scratch_;
};

}  // namespace

void newton_schulz_on_device(const MatrixBatch& whole, int steps, base::CudaStream stream) {
  MatrixBatch batch = whole;
  if (batch.count == 0 || batch.rows == 0 || batch.cols == 0) return;
  if (batch.stride == 0) batch.stride = batch.rows * batch.cols;
  const std::int64_t most = std::clamp<std::int64_t>(kGroupBytes / DeviceIterations::bytes(batch), 1, batch.count);
  DeviceIterations iterations(batch, most, stream);
  for (std::int64_t first = 0; first < batch.count; first += most) {
    MatrixBatch group = batch;
    const std::size_t offset = static_cast<std::size_t>(first * batch.stride) * quant::size_of(batch.type);
    group.u = static_cast<const std::byte*>(batch.u) + offset;
    group.x = static_cast<std::byte*>(batch.x) + offset;
    group.count = std::min(most, batch.count - first);
    iterations.run(group, steps);
  }
}

}  // namespace tessera::ops
