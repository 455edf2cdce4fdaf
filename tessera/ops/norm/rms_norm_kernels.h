#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/norm/sum_of_parts.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Matrices are row-major [tokens, hidden] of `type`. Statistics and dweight have the accumulator type.
struct RmsNormShape {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, hidden = 0;
};
struct RmsNormStatistics {  // computes sum = dropout(x) + residual, then rstd of the sum
  SumOfParts x = {};
  const void* residual = nullptr;  // null: the sum has no residual term
  Dropout dropout = {};
  double eps = 0;
  void* sum = nullptr;   // not written if x has one part and there is neither a residual nor dropout: x is the sum
  void* rstd = nullptr;  // [tokens]
};
struct RmsNormForward {  // computes RmsNormStatistics and RmsNormApply in one pass
  SumOfParts x = {};
  const void* residual = nullptr;  // null: the sum has no residual term
  const void* weight = nullptr;
  Dropout dropout = {};
  double eps = 0;
  void* sum = nullptr;  // as in RmsNormStatistics
  void* y = nullptr;
  void* rstd = nullptr;
};
struct RmsNormApply {
  const void* sum = nullptr;
  const void* rstd = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
};
struct RmsNormBackward {
  SumOfParts dy = {};
  const void* dsum = nullptr;  // may be null
  const void* sum = nullptr;
  const void* rstd = nullptr;
  const void* weight = nullptr;
  Dropout dropout = {};     // dropout of x
  void* dx = nullptr;       // the gradient of `sum`
  void* dinput = nullptr;   // with dropout only: the gradient of x, which is dropout(dx)
  void* dweight = nullptr;  // [hidden], overwritten
};
namespace cpu {
void rms_norm_statistics(const RmsNormShape& shape, const RmsNormStatistics& arguments);
void rms_norm_apply(const RmsNormShape& shape, const RmsNormApply& arguments);
void rms_norm_backward(const RmsNormShape& shape, const RmsNormBackward& arguments);
}  // namespace cpu

struct RmsNormParts {
  void* scratch = nullptr;  // rms_norm_backward_scratch() elements of dweight's type
  bool accumulate = false;  // true: adds to dweight
};
namespace cuda {
void rms_norm_forward(const RmsNormShape& shape, const RmsNormForward& arguments, base::CudaStream stream);
void rms_norm_apply(const RmsNormShape& shape, const RmsNormApply& arguments, base::CudaStream stream);
std::int64_t rms_norm_backward_scratch(const RmsNormShape& shape);
void rms_norm_backward(const RmsNormShape& shape, const RmsNormBackward& arguments, const RmsNormParts& parts,
                       base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
