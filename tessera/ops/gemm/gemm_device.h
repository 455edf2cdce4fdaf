// Matrix products on a GPU. Internal to ops.
#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/encoding.h"

namespace tessera::ops {

// result [rows, cols] = left * right, all row-major: left is [rows, inner], transposed where it is stored as
// [inner, rows]; right likewise. Sums in fp32 for bf16 and fp32, in fp64 for fp64; rounded once.
struct Product {
  std::int64_t rows = 0, cols = 0, inner = 0;
  quant::DType type = quant::DType::fp32;         // of left and right
  quant::DType result_type = quant::DType::fp32;  // `type` or its accumulator type
  const void* left = nullptr;
  bool left_transposed = false;
  const void* right = nullptr;
  bool right_transposed = false;
  void* result = nullptr;
};

// A side of a product in a number format: rows of codes, over whose columns sums run.
struct ScaledSide {
  const void* codes = nullptr;  // row-major, a byte a code or two 4-bit codes in one
  quant::Encoding encoding;
  // As the library reads them. Tile of the whole matrix: one fp32 number. {1, 128}: scales[block of columns * rows +
  // row]. {128, 128}: scales[block of rows * stride + block of columns], where stride is the number of blocks, rounded
  // up to a multiple of 4. {1, 32} of E8M0 and {1, 16} of E4M3: padded and swizzled (quant/formats/swizzle.h).
  const void* scales = nullptr;
};

// result [rows, cols] = left right^T, left [rows, inner], right [cols, inner]. Extents are multiples of 16. Sums in
// fp32, of a fast product with fewer bits; rounded once to bf16 or fp32.
struct ScaledProduct {
  std::int64_t rows = 0, cols = 0, inner = 0;
  ScaledSide left, right;
  bool fast = false;  // only with a scale for each whole matrix
  quant::DType result_type = quant::DType::bf16;
  void* result = nullptr;
};

// Scratch memory that a product may use, bytes.
inline constexpr std::int64_t kProductScratch = std::int64_t{32} << 20;

namespace cuda {
// By cuBLASLt; pointers at multiples of 256. The algorithm follows from shape and types alone (gemm_table.h, else the
// library's heuristic), so every rank takes the same. candidate: which of the heuristic's (0: its first), for
// benchmarks; -1: the table's. scratch: kProductScratch bytes on the device. Enqueues; does not synchronise. Errors: a
// shape or a candidate that the library has no algorithm for.
void multiply(const Product& product, void* scratch, base::CudaStream stream, int candidate = -1);
// The same for number formats. Errors also: encodings that the device does not multiply.
void multiply(const ScaledProduct& product, void* scratch, base::CudaStream stream, int candidate = -1);
}  // namespace cuda

}  // namespace tessera::ops
