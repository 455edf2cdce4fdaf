// The kernels of elementwise.h behind one interface for host and device memory. On the host they run at once; on a CUDA
// device they are enqueued on a stream. Host and device give the same bits, except that the bits of a NaN may differ.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/base/scratch.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/exact_sum.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// Kernels for the memory of device(): all pointers point to it. The kernels of a communicator's lane are called only by
// the work of that lane. Throws as elementwise.h does, and for CUDA errors.
class Kernels {
 public:
  using Parts = std::span<const void* const>;
  virtual constexpr ~Kernels() = default;
  virtual base::Device device() const = 0;
  // Returns temporary memory for the next calls. The caller may destroy the scratch directly after the last call that
  // uses it; later calls may receive the same memory.
  virtual base::Scratch scratch(std::size_t bytes) const = 0;

  // `source` and `target` are either equal or do not overlap.
  virtual void copy(const void* source, void* target, std::size_t bytes) const = 0;
  // Writes `value`, converted to `type`, to `count` elements.
  virtual void fill(void* target, DType type, double value, std::int64_t count) const = 0;
  virtual void copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                           std::int64_t rows, std::int64_t cols, std::size_t element_bytes) const = 0;
  virtual void cast(const void* source, DType from, void* target, DType to, std::int64_t count) const = 0;
  virtual void ordered_sum(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                           std::int64_t count) const = 0;
  // ordered_sum over a dense matrix of rows x cols. Also writes the sum of squares of every finished row to `squares`
  // in fp64. The order of that sum depends only on `cols`.
  virtual void ordered_sum_squares(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                                   std::int64_t rows, std::int64_t cols, double* squares) const = 0;
  virtual void ordered_sum_bfloat16(bfloat16* out, Parts parts, std::int64_t count) const = 0;
  // The type is i32 or i64. The sum wraps around.
  virtual void ordered_sum_integers(void* out, Parts parts, DType type, std::int64_t count) const = 0;
  // Dequantizes as dequantize of quantize.h.
  virtual void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target) const = 0;
  virtual void ordered_extreme(void* out, Parts parts, DType type, std::int64_t count, bool maximum) const = 0;
  // Adds values to *sum as add of exact_sum.h does. *sum is normalised before and after the call.
  virtual void add_exactly(const double* values, std::int64_t count, ExactSum* sum) const = 0;
  // Adds the number of values that are infinite or NaN to *counter.
  virtual void count_not_finite(const float* values, std::int64_t count, std::int64_t* counter) const = 0;
  // Writes rounded(*sum) of exact_sum.h to *total.
  virtual void round_exactly(const ExactSum* sum, double* total) const = 0;
};

// Returns the kernels for host memory. The kernels have no state.
const Kernels& host_kernels();
// Returns kernels that enqueue on `stream`. Any thread may call the kernels, and `stream` must outlive them. Throws
// Error in a build without CUDA.
std::unique_ptr<Kernels> make_cuda_kernels(base::Device device, base::CudaStream stream);

// The order of ordered_sum_squares. A row is split into pieces of kSquaresPiece elements. The pieces are assigned to
// squares_lanes(cols) lanes in turn. Each lane adds its squares one by one, starting at 0. Then each run of 32 lanes is
// reduced: lane i adds lane i + 16, then lane i + 8, and so on down to lane i + 1. Finally the sums of the runs are
// added in order.
inline constexpr int kSquaresPiece = 4;
constexpr int squares_lanes(std::int64_t cols) {
  return cols <= 1024 ? 32 : 256;
}

}  // namespace tessera::quant
