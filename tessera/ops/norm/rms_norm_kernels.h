#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Matrices are row-major [tokens, hidden] of `type`. Statistics and dweight have the accumulator type.
struct RmsNormShape {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, hidden = 0;
};
struct RmsNormStatistics {  // computes sum = x + residual if `residual` is not null, then rstd
  const void* x = nullptr;
  const void* residual = nullptr;  // null: x is the sum, and `sum` is not written
  double eps = 0;
  void* sum = nullptr;
  void* rstd = nullptr;  // [tokens]
};
struct RmsNormForward {  // computes RmsNormStatistics and RmsNormApply in one pass
  const void* x = nullptr;
  const void* residual = nullptr;  // null: x is the sum, and `sum` is not written
  const void* weight = nullptr;
  double eps = 0;
  void* sum = nullptr;
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
  const void* dy = nullptr;
  const void* dsum = nullptr;  // may be null
  const void* sum = nullptr;
  const void* rstd = nullptr;
  const void* weight = nullptr;
  void* dx = nullptr;
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
