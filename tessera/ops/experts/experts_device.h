// Internal to ops/experts.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

// Throws InputError for a tensor on a GPU.
inline void require_host(const at::Tensor& tensor, const char* what) {
  if (on_cuda(tensor)) throw InputError("{}: experts run on CPUs only in this version", what);
}

}  // namespace tessera::ops
