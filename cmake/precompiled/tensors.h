// The headers of core.h, and ATen's tensors. Other headers of libtorch are not included, because every file
// instantiates the templates that inline functions of a precompiled header use.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "cmake/precompiled/core.h"
