// Initial values from a counter-based generator: an element's value depends on (seed, parameter name, logical index)
// only, so it is the same for every mesh and device. Philox-4x32-10 (Salmon et al. 2011) with the seed as its key and
// the logical index beside the name's 64-bit FNV-1a hash as its counter; made normal with fp64 add, multiply and fma
// only (normal.h).
#pragma once
#include <cstdint>
#include <string_view>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Fills rows x cols elements (rows `stride` apart) of the logical matrix with `logical_cols` columns, starting at
// logical (row, col): element (r, c) has index (row + r) * logical_cols + (col + c). Rounded once from fp64 to `type`.
struct NormalFill {
  std::uint64_t seed = 0;
  std::string_view name;
  double standard_deviation = 0.02;
  std::int64_t logical_cols = 0, row = 0, col = 0, rows = 0, cols = 0, stride = 0;
};
void fill_normal(const NormalFill& fill, void* data, quant::DType type);
void fill_constant(double value, void* data, quant::DType type, std::int64_t count);

namespace cuda {  // the same bits in a device's memory
void fill_normal(const NormalFill& fill, void* data, quant::DType type, base::CudaStream stream);
void fill_constant(double value, void* data, quant::DType type, std::int64_t count, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
