// Between tessera's element types and ATen's; tensors over memory that someone else owns.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"

namespace tessera::ops {

at::ScalarType to_scalar_type(base::DType type);
base::DType to_dtype(at::ScalarType type);
// A view; the memory must outlive it.
at::Tensor view_of(void* data, at::IntArrayRef shape, base::DType type);

}  // namespace tessera::ops
