// The kernels of elementwise.h where the memory lies: on the host at once, on a CUDA device as work of a stream. The
// same bits on both, except in what kind of NaN a sum or a rounding gives.
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

// Pointers are memory of device(). Of a lane's communicator: called by work on that lane. Errors as in elementwise.h,
// and CUDA's.
class Kernels {
 public:
  using Parts = std::span<const void* const>;
  virtual constexpr ~Kernels() = default;
  virtual base::Device device() const = 0;
  // Memory for the calls to come: it may be dropped right after the last of them, and later ones may get the same.
  virtual base::Scratch scratch(std::size_t bytes) const = 0;

  // The two do not overlap, or are the same.
  virtual void copy(const void* source, void* target, std::size_t bytes) const = 0;
  // `count` elements, each `value` in `type`.
  virtual void fill(void* target, DType type, double value, std::int64_t count) const = 0;
  virtual void copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                           std::int64_t rows, std::int64_t cols, std::size_t element_bytes) const = 0;
  virtual void cast(const void* source, DType from, void* target, DType to, std::int64_t count) const = 0;
  virtual void ordered_sum(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                           std::int64_t count) const = 0;
  // ordered_sum over rows x cols, both dense, and the sum of squares of every finished row in fp64, in an order that
  // depends on cols alone.
  virtual void ordered_sum_squares(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                                   std::int64_t rows, std::int64_t cols, double* squares) const = 0;
  virtual void ordered_sum_bfloat16(bfloat16* out, Parts parts, std::int64_t count) const = 0;
  // i32 or i64, wrapping.
  virtual void ordered_sum_integers(void* out, Parts parts, DType type, std::int64_t count) const = 0;
  // dequantize of quantize.h.
  virtual void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target) const = 0;
  virtual void ordered_extreme(void* out, Parts parts, DType type, std::int64_t count, bool maximum) const = 0;
  // add of exact_sum.h: *sum is normalised before and after.
  virtual void add_exactly(const double* values, std::int64_t count, ExactSum* sum) const = 0;
  // Adds to *counter how many of the values are infinite or NaN.
  virtual void count_not_finite(const float* values, std::int64_t count, std::int64_t* counter) const = 0;
  // *total = rounded(*sum) of exact_sum.h.
  virtual void round_exactly(const ExactSum* sum, double* total) const = 0;
};

// Stateless.
const Kernels& host_kernels();
// Enqueues on `stream`, which outlives it, from any thread. Errors: built without CUDA.
std::unique_ptr<Kernels> make_cuda_kernels(base::Device device, base::CudaStream stream);

// The order of ordered_sum_squares. A row is cut in pieces of kSquaresPiece elements, dealt out to `lanes` lanes in
// turn; a lane adds its squares one by one from 0. Then, of the lanes of each run of 32, lane i takes in those at i +
// 16, i + 8, ... i + 1; the runs' sums are added in order.
inline constexpr int kSquaresPiece = 4;
constexpr int squares_lanes(std::int64_t cols) {
  return cols <= 1024 ? 32 : 256;
}

}  // namespace tessera::quant
