// Products of experts that multiply e4m3 codes on a GPU: the CUDA kernel that makes the codes, and the grouped product.
// All pointers are memory of one device. Internal to ops.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/grouped/grouped_types.h"
#include "tessera/ops/grouped/stacked_rows.h"
#include "tessera/quant/formats/stack_kernels.h"

namespace tessera::ops {

// code_stack and the products of grouped_formats.h for factors with codes, on a GPU or in a dry run. `dw` is bf16 and
// is overwritten.
StackFactor codes_of_stack(const at::Tensor& stack, std::int64_t matrices, const quant::Encoding& encoding,
                           const WholeScale& whole, Sides side);
at::Tensor fprop_of_codes(const at::Tensor& x, const RowQuantization& as, const StackFactor& w,
                          const Selection& selection);
at::Tensor dgrad_of_codes(const at::Tensor& dy, const RowQuantization& as, const StackFactor& w,
                          const Selection& selection);
void wgrad_of_codes(const RowFactor& dy, const RowFactor& x, const Selection& selection, at::Tensor& dw);

// Rows of one thread block of the cast, for find_places.
inline constexpr std::int64_t kCodeStrip = 128;

// Arguments to round matrices with one scale each to e4m3 codes.
struct CodesCast {
  StackedRows source;    // the number of columns is a multiple of 16
  StripPlaces places;    // for strips of kCodeStrip rows; not read if source.ends is null
  MatrixNumbers scales;  // multipliers
  std::uint8_t* codes = nullptr;
  // False: `codes` has the order of the source. True: the codes of each matrix are transposed.
  //   source.ends is null  matrix i is [cols, height] and begins after the codes of i matrices. `height` is a
  //                        multiple of 16
  //   otherwise            one matrix [cols, stride]. The codes of matrix i begin in the column where the matrix before
  //                        it ends (StripPlaces::result_ends), with zeros between the matrices
  bool is_transposed = false;
  std::int64_t stride = 0;  // a multiple of 16
  // Not null: the factor of row r becomes alpha of its matrix i and of matrix i / per_expert of another stack.
  float* factors = nullptr;
  MatrixNumbers own, partner;  // the inverse scales
  std::int64_t per_expert = 1;
  float* amax = nullptr;  // raised to the greatest magnitude of all matrices; null: not computed
};

// The factors of a grouped product of codes: result = left right^T for each group, times a factor for each row.
struct CodesProduct {
  at::Tensor left, right;  // codes whose rows are adjacent in memory along the dimension of the sum
  at::Tensor factors;      // fp32, one for each row of all results
  at::Tensor ends;         // int32 [groups]: the ends of groups along the dimension that differs between groups
  bool fast = false;       // whether sums have fewer bits
};

namespace cuda {

void cast_codes(const CodesCast& cast, base::CudaStream stream);
// left: [rows, inner], right: [groups, cols, inner], result: [rows, cols] in bf16. Groups are divided along the rows.
void multiply_row_codes(const CodesProduct& product, at::Tensor& result);
// left: [rows, inner], right: [cols, inner], result: [groups, rows, cols] in bf16. Groups are divided along the inner
// dimension. Each has a positive multiple of 16 elements.
void multiply_inner_codes(const CodesProduct& product, at::Tensor& result);

}  // namespace cuda
}  // namespace tessera::ops
