#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
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
namespace cpu {
void swiglu_forward(const SwigluArguments& arguments);
void swiglu_backward(const SwigluArguments& arguments);
}  // namespace cpu
namespace cuda {
void swiglu_forward(const SwigluArguments& arguments, base::CudaStream stream);
void swiglu_backward(const SwigluArguments& arguments, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
