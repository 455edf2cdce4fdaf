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
  void* output = nullptr;      // for backward: receives out; null: not written
};

// Arguments of SwiGLU in bf16 with fp8 results. The kernel rounds results to bf16 and then casts them to fp8, without
// storing bf16 results. The kernel does not read the `source` of the two casts.
struct SwigluCast {
  std::int64_t features = 0;
  const quant::bfloat16* gate_up = nullptr;  // [tokens, 2 * features]
  const quant::bfloat16* dout = nullptr;     // backward only
  // The cast of out [tokens, features] in forward, and of the gradient of gate_up in backward. In backward, features
  // must be a multiple of kCastFeatures.
  quant::Fp8Cast result;
  // For backward: the cast of out to E4M3 by columns, without amax. If output.columnwise is null, out is not cast.
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
// Throw the errors of quant::CudaTable::cast_fp8. Backward also throws Error if features is not a multiple of
// kCastFeatures.
void swiglu_forward_cast(const SwigluCast& cast, base::CudaStream stream);
void swiglu_backward_cast(const SwigluCast& cast, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
