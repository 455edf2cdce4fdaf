// Matrix products on a GPU. Internal to ops.
#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/encoding.h"

namespace tessera::ops {

// result [rows, cols] = left * right. All matrices are row-major. `left` is [rows, inner], or is stored as [inner,
// rows] if left_transposed is true. `right` is [inner, cols], or is stored as [cols, inner] if right_transposed is
// true. Sums are fp32 for bf16 and fp32, and fp64 for fp64; the result is rounded once. With `alpha`, the sums are
// multiplied by *alpha in fp32 before the result is rounded.
struct Product {
  std::int64_t rows = 0, cols = 0, inner = 0;
  quant::DType type = quant::DType::fp32;         // type of left and right
  quant::DType result_type = quant::DType::fp32;  // `type` or its accumulator type
  const void* left = nullptr;
  bool left_transposed = false;
  const void* right = nullptr;
  bool right_transposed = false;
  void* result = nullptr;
  // Two numbers in device memory, for bf16 and fp32: the factor, and 0 (the factor of the result's earlier contents).
  // Null: the factor is 1.
  const float* alpha = nullptr;
};

// result = factor * left right + addend_factor * addend for `count` matrices of one shape, in which a product and its
// addend have the type of the result. Sums over the inner dimension are not divided. One algorithm is chosen for a
// shape and used for every count, so the bits of a matrix do not depend on the others.
struct BatchedProduct {
  Product product;  // without alpha
  std::int64_t count = 1;
  std::int64_t left_stride = 0, right_stride = 0, result_stride = 0;  // elements; in bytes, multiples of 256
  double factor = 1;
  const void* addend = nullptr;  // as the result; null: no addend
  double addend_factor = 0;
};

// One operand of a product in a number format. The product sums over the columns of this matrix of codes.
struct ScaledSide {
  const void* codes = nullptr;  // row-major, one byte for each code
  quant::Encoding encoding;
  // The scales in the layout that cuBLASLt reads. If one tile covers the whole matrix, this is one fp32 number. Tile
  // {1, 128}: scales[column block * rows + row]. Tile {128, 128}: scales[row block * stride + column block], where
  // stride is the number of column blocks, rounded up to a multiple of 4.
  const void* scales = nullptr;
};

// result [rows, cols] = left right^T, with left [rows, inner] and right [cols, inner]. All dimensions are multiples of
// 16. Sums are fp32. If `fast` is true, sums have fewer bits. The result is rounded once to bf16 or fp32.
struct ScaledProduct {
  std::int64_t rows = 0, cols = 0, inner = 0;
  ScaledSide left, right;
  bool fast = false;  // allowed only if each matrix has one scale
  quant::DType result_type = quant::DType::bf16;
  void* result = nullptr;
};

// The arguments of quant::product_alpha. The numbers of both matrices are in device memory.
struct AlphaTask {
  quant::Encoding left, right;
  // Numbers that product_alpha does not read may be null.
  const float *left_whole = nullptr, *right_whole = nullptr;
  float* alpha = nullptr;  // receives the two numbers of Product::alpha
};

// The size of the scratch memory of a product, in bytes.
inline constexpr std::int64_t kProductScratch = std::int64_t{32} << 20;

namespace cuda {
// Multiplies with cuBLASLt. Pointers must be multiples of 256. The algorithm depends only on shape and types, so every
// rank uses the same algorithm. `candidate` is an index into the algorithms that the library's heuristic returns;
// benchmarks pass it. -1 selects the candidate of gemm_table.h. `scratch` is kProductScratch bytes on the device.
// Enqueues without synchronization. Throws Error if the library has no algorithm for the shape or the candidate.
void multiply(const Product& product, void* scratch, base::CudaStream stream, int candidate);
// The rules of `multiply` apply. Uses the first algorithm of the library's heuristic for one matrix.
void multiply_batch(const BatchedProduct& product, void* scratch, base::CudaStream stream);
void write_alpha(const AlphaTask& task, base::CudaStream stream);
// Multiplies operands in number formats. If `candidate` is -1, uses the first algorithm of the library's heuristic.
// Also throws Error for encodings that the device does not multiply.
void multiply_scaled(const ScaledProduct& product, void* scratch, base::CudaStream stream, int candidate);
}  // namespace cuda

}  // namespace tessera::ops
