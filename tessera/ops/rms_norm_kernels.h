#pragma once
#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::ops {

// Matrices are [tokens, hidden] of `type`, row-major; statistics, and dweight, of its accumulator type.
struct RmsNormShape {
  base::DType type = base::DType::fp32;
  std::int64_t tokens = 0, hidden = 0;
};
struct RmsNormStatistics {  // sum = x + residual where there is a residual, then rstd of sum
  const void* x = nullptr;
  const void* residual = nullptr;  // null: sum is not written, x stands for it
  double eps = 0;
  void* sum = nullptr;
  void* rstd = nullptr;  // [tokens]
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
  void* dweight = nullptr;  // [hidden], written
};
namespace cpu {
void rms_norm_statistics(const RmsNormShape& shape, const RmsNormStatistics& arguments);
void rms_norm_apply(const RmsNormShape& shape, const RmsNormApply& arguments);
void rms_norm_backward(const RmsNormShape& shape, const RmsNormBackward& arguments);
}  // namespace cpu

}  // namespace tessera::ops
