// The Newton-Schulz iterations of Muon (Jordan et al. 2024), with the coefficients of torch.optim.Muon. They bring the
// singular values of a matrix near 1 and keep its singular vectors:
//
//   X = u / max(||u||, 1e-7), transposed if the matrix has more rows than columns
//   in each step: S = X X^T,  P = b S + c S S,  X = a X + P X     with (a, b, c) = (3.4445, -4.7750, 2.0315)
//
// ||u|| is the root of the sum of all squares. The squares of a row are added in fp64 (square_sums.h), and the rows in
// their order. Matrices in bf16: the norm and all sums are fp32, and X, S and P are rounded to bf16 once each. Matrices
// in fp32 and fp64: all numbers have the type of the matrix, except the sum of squares.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

inline constexpr double kNewtonSchulzA = 3.4445, kNewtonSchulzB = -4.7750, kNewtonSchulzC = 2.0315;
inline constexpr double kMinMatrixNorm = 1e-7;

// Returns the floating-point operations of the iterations of a matrix: 4 m^2 n + 2 m^3 in each step, where m is the
// smaller and n the larger dimension.
double newton_schulz_flops(std::int64_t rows, std::int64_t cols, int steps);

// Matrices of one shape. u and x are [count, rows, cols] of `type`, which is bf16, fp32 or fp64. Each matrix is dense.
struct MatrixBatch {
  const void* u = nullptr;
  void* x = nullptr;  // receives the results; may equal `u`
  std::int64_t count = 1, rows = 0, cols = 0;
  std::int64_t stride = 0;  // elements between the starts of two matrices, at least rows * cols; 0: rows * cols
  quant::DType type = quant::DType::fp32;
  // For newton_schulz_on_device: newton_schulz_scratch() bytes of device memory, whose address is a multiple of
  // base::kAlignment. Other work on the stream may use the memory before and afterwards.
  std::byte* scratch = nullptr;
};

// Iterates matrices in host memory. The bits of a matrix depend neither on `count` nor on its position in the batch.
// Throws Error for a negative size, and for a type that is not floating.
void newton_schulz(const MatrixBatch& batch, int steps);
// Returns the bytes of MatrixBatch::scratch for matrices of this type, shape and count.
std::int64_t newton_schulz_scratch(const MatrixBatch& batch);
// The same for matrices in device memory. Matrices are iterated together in groups, whose scratch memory is limited.
// Enqueues without synchronization, and allocates no memory. Throws Error if the scratch is null.
void newton_schulz_on_device(const MatrixBatch& batch, int steps, base::CudaStream stream);

}  // namespace tessera::ops
