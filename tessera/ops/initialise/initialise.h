// Initial values from a counter-based generator. The value of an element depends only on the seed, the parameter name
// and the logical index, so it is the same for every mesh and device. The generator is Philox-4x32-10 (Salmon et al.
// 2011). The generator's key is the seed, and its counter is the logical index with the 64-bit FNV-1a hash of the name.
// The bits are converted to normal numbers with fp64 additions, multiplications and fma only (normal.h).
#pragma once
#include <cstdint>
#include <string_view>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Fills a block of rows x cols elements of a logical matrix with `logical_cols` columns; rows are `stride` elements
// apart. The block starts at (row, col) of the logical matrix, so element (r, c) has the index (row + r) * logical_cols
// + (col + c). Values are rounded once from fp64 to `type`.
struct NormalFill {
  std::uint64_t seed = 0;
  std::string_view name;
  double standard_deviation = 0.02;
  std::int64_t logical_cols = 0, row = 0, col = 0, rows = 0, cols = 0, stride = 0;
};
void fill_normal(const NormalFill& fill, void* data, quant::DType type);
void fill_constant(double value, void* data, quant::DType type, std::int64_t count);

namespace cuda {  // the same bits in device memory
void fill_normal(const NormalFill& fill, void* data, quant::DType type, base::CudaStream stream);
void fill_constant(double value, void* data, quant::DType type, std::int64_t count, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
