#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/cuda/device_quantize.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

struct SwigluArguments {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, features = 0;  // gate_up has 2 * features columns
  const void* gate_up = nullptr;
  const void* dout = nullptr;  // backward only
  void* result = nullptr;      // out [tokens, features], or the gradient of gate_up
  void* output = nullptr;      // backward: also writes out here, unless null
};

// SwiGLU of bf16 whose results are rounded to bf16 and then cast to fp8. The bf16 results are not stored. The sources
// of the casts are not read.
struct SwigluCast {
  std::int64_t features = 0;
  const quant::bfloat16* gate_up = nullptr;  // [tokens, 2 * features]
  const quant::bfloat16* dout = nullptr;     // backward only
  // Forward: casts out [tokens, features]. Backward: casts the gradient of gate_up; features is then a multiple of
  // kCastFeatures.
  quant::Fp8Cast result;
  // Backward: casts out to E4M3 by columns, without amax, unless the address of its columnwise codes is null.
  quant::Fp8Cast output;
};
inline constexpr std::int64_t kCastFeatures = 16;

namespace cpu {
void swiglu_forward(const SwigluArguments& arguments);
void swiglu_backward(const SwigluArguments& arguments);
}  // namespace cpu
namespace cuda {
void swiglu_forward(const SwigluArguments& arguments, base::CudaStream stream);
void swiglu_backward(const SwigluArguments& arguments, base::CudaStream stream);
// Throw as quant::CudaTable::cast_fp8. Backward also throws if features is not a multiple of kCastFeatures.
void swiglu_forward_cast(const SwigluCast& cast, base::CudaStream stream);
void swiglu_backward_cast(const SwigluCast& cast, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
