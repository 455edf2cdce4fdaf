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
  void* again = nullptr;       // backward: out too, where it is not null
};

// SwiGLU of bf16 whose results are rounded to bf16, then cast as quant::Fp8Cast says without being stored in between.
// Sources of the casts are not read.
struct SwigluCast {
  std::int64_t features = 0;
  const quant::bfloat16* gate_up = nullptr;  // [tokens, 2 * features]
  const quant::bfloat16* dout = nullptr;     // backward only
  // Forward: of out [tokens, features]. Backward: of the gradient of gate_up; features a multiple of kCastFeatures.
  quant::Fp8Cast result;
  // Backward: out again, where its columnwise codes are not null: E4M3 codes by columns only, no amax.
  quant::Fp8Cast again;
};
inline constexpr std::int64_t kCastFeatures = 16;

namespace cpu {
void swiglu_forward(const SwigluArguments& arguments);
void swiglu_backward(const SwigluArguments& arguments);
}  // namespace cpu
namespace cuda {
void swiglu_forward(const SwigluArguments& arguments, base::CudaStream stream);
void swiglu_backward(const SwigluArguments& arguments, base::CudaStream stream);
// Errors: as quant::CudaTable::cast_fp8; features that are no multiple of kCastFeatures in backward.
void swiglu_forward_cast(const SwigluCast& cast, base::CudaStream stream);
void swiglu_backward_cast(const SwigluCast& cast, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
