// Conversions between tessera's element types and ATen's, and tensors over memory that the caller owns.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/base/device.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

at::ScalarType to_scalar_type(quant::DType type);
quant::DType to_dtype(at::ScalarType type);
at::Device to_device(base::Device device);
// Returns a tensor that refers to `data`. The memory must outlive the tensor. On ATen's meta device, returns a tensor
// with this shape and without memory.
at::Tensor view_of(void* data, at::IntArrayRef shape, quant::DType type, at::Device device = at::kCPU);

}  // namespace tessera::ops
