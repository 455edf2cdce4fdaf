// Functions about matrices and operands that the files of operands share. Internal to ops.
#pragma once
#include "tessera/ops/gemm/operand_types.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::ops {

inline quant::Extent extent_of(const at::Tensor& matrix) {
  return {.rows = matrix.size(0), .cols = matrix.size(1)};
}
inline quant::Extent transposed(quant::Extent extent) {
  return {.rows = extent.cols, .cols = extent.rows};
}

// Returns a dense bf16 matrix. Throws Error, which names `what`, for another type or number of dims.
at::Tensor bf16_matrix(const at::Tensor& matrix, const char* what);

// CPU: returns the transformed columns of a dense bf16 matrix (quant/formats/hadamard.h), with a multiple of 16 rows.
at::Tensor transformed_on_host(const at::Tensor& matrix);

template <typename T>
T* data_of(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

inline bool has(Sides requested, Sides side) {
  return requested == side || requested == Sides::both || requested == Sides::kept;
}

// Returns the number in a tensor on a CPU; 0 if the tensor is undefined.
inline float number(const at::Tensor& one) {
  return one.defined() ? *one.const_data_ptr<float>() : 0.0F;
}

}  // namespace tessera::ops
