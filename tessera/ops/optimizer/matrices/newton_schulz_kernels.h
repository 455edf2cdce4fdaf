// The parts of the iterations of newton_schulz.h on a GPU that are not products. Internal to ops.
#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops::cuda {

// Matrices of one shape before and after the iterations: [count, rows, cols], `stride` elements apart; and during the
// iterations: X [count, m, n] with m = min(rows, cols), n = max(rows, cols), `x_stride` elements apart.
struct IteratedMatrices {
  quant::DType type = quant::DType::fp32;
  std::int64_t count = 0, rows = 0, cols = 0, stride = 0, x_stride = 0;
};

// norms[i] = ||matrix i||, in fp64. row_sums: [count, rows], the sums of the squares of each row. The rows
// are added in their order.
void matrix_norms(const IteratedMatrices& matrices, const double* row_sums, double* norms, base::CudaStream stream);
// Writes X = u / max(norm, 1e-7), transposed if the matrix has more rows than columns. The division and the norm have
// the accumulator type.
void begin_iterations(const IteratedMatrices& matrices, const void* u, const double* norms, void* x,
                      base::CudaStream stream);
// Writes the matrices from X.
void end_iterations(const IteratedMatrices& matrices, const void* x, void* to, base::CudaStream stream);

}  // namespace tessera::ops::cuda
