// Initial values from a counter-based generator. The value of an element depends only on the seed, the parameter name
// and the logical index of the element. The values are therefore equal for every mesh and device. The generator is
// Philox-4x32-10 (Salmon et al. 2011). The generator's key is the seed. The generator's counter consists of the logical
// index and the 64-bit FNV-1a hash of the name. Only fp64 additions, multiplications and fma convert the random bits to
// normal numbers (normal.h).
#pragma once
#include <cstdint>
#include <string_view>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// A block of rows x cols elements of a logical matrix, which fill_normal fills. The logical matrix has `logical_cols`
// columns, and the block starts at (row, col). Element (r, c) of the block has the logical index (row + r) *
// logical_cols + (col + c). In memory the starts of two rows are `stride` elements apart. Values are rounded once from
// fp64 to `type`.
struct NormalFill {
  std::uint64_t seed = 0;
  std::string_view name;
  double standard_deviation = 0.02;
  std::int64_t logical_cols = 0, row = 0, col = 0, rows = 0, cols = 0, stride = 0;
};
void fill_normal(const NormalFill& fill, void* data, quant::DType type);
void fill_constant(double value, void* data, quant::DType type, std::int64_t count);

namespace cuda {  // write the same bits to device memory
void fill_normal(const NormalFill& fill, void* data, quant::DType type, base::CudaStream stream);
void fill_constant(double value, void* data, quant::DType type, std::int64_t count, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
