// The same with ATen's tensors. Other headers of libtorch stay out: each file pays for the templates that inline
// functions of a precompiled header use.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "cmake/precompiled/core.h"
