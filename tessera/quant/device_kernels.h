// The kernels of elementwise.h behind one interface for host and device memory. On the host a call returns when the
// work is done. On a CUDA device a call enqueues the work on a stream. Host and device give the same bits. Only the
// bits of a NaN may differ.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/base/memory/scratch.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/exact_sum.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// Kernels for the memory of device(); all pointers point to this memory. If the object belongs to a communicator's
// lane, only work of that lane calls the kernels. The functions throw the errors of elementwise.h, and Error for CUDA
// errors.
class Kernels {
 public:
  using Parts = std::span<const void* const>;
  virtual constexpr ~Kernels() = default;
  virtual base::Device device() const = 0;
  // Returns temporary memory for the next calls. The caller may destroy the scratch directly after the last call that
  // uses it. A later scratch may have the same memory.
  virtual base::Scratch scratch(std::size_t bytes) const = 0;

  // `source` and `target` are equal or do not overlap.
  virtual void copy(const void* source, void* target, std::size_t bytes) const = 0;
  // Writes `value`, converted to `type`, to `count` elements.
  virtual void fill(void* target, DType type, double value, std::int64_t count) const = 0;
  virtual void copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                           std::int64_t rows, std::int64_t cols, std::size_t element_bytes) const = 0;
  virtual void cast(const void* source, DType from, void* target, DType to, std::int64_t count) const = 0;
  virtual void ordered_sum(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                           std::int64_t count) const = 0;
  // Like ordered_sum, over a dense matrix of rows x cols elements. Also writes the sum of the squares of each row of
  // the result to `squares`, in fp64. The order of the squares' additions depends only on `cols`.
  virtual void ordered_sum_squares(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                                   std::int64_t rows, std::int64_t cols, double* squares) const = 0;
  virtual void ordered_sum_bfloat16(bfloat16* out, Parts parts, std::int64_t count) const = 0;
  // `type` is i32 or i64. Overflow wraps around.
  virtual void ordered_sum_integers(void* out, Parts parts, DType type, std::int64_t count) const = 0;
  // Calls dequantize of quantize.h for each matrix of a stack. `matrix` is the extent of one matrix. The elements of
  // the matrices are adjacent in `target`.
  virtual void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target,
                          std::int64_t matrices = 1) const = 0;
  // Like dequantize, with decode of decoded.h.
  virtual void decode(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target,
                      std::int64_t matrices = 1) const = 0;
  // Calls transpose of quantize.h for each weight. On a CUDA device, one launch transposes all weights.
  virtual void create_columnwise(std::span<const Transposition> weights) const = 0;
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
// Returns kernels that enqueue on `stream`. Any thread may call the kernels. `stream` must outlive the returned object.
// Throws Error in a build without CUDA.
std::unique_ptr<Kernels> make_cuda_kernels(base::Device device, base::CudaStream stream);

// The order in which ordered_sum_squares adds squares. A row is split into pieces of kSquaresPiece elements. Piece i
// belongs to lane i mod squares_lanes(cols). Each lane adds its squares one by one, starting at 0. Then each group of
// 32 adjacent lanes is reduced: lane i adds lane i + 16, then lane i + 8, and so on down to lane i + 1. Finally the
// sums of the groups are added in order.
inline constexpr int kSquaresPiece = 4;
constexpr int squares_lanes(std::int64_t cols) {
  return cols <= 1024 ? 32 : 256;
}

}  // namespace tessera::quant
