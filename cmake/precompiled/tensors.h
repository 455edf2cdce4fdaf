// The headers of core.h, ATen's tensors, and JSON. Other headers of libtorch are not included, because every file
// instantiates the templates that inline functions of a precompiled header use.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "cmake/precompiled/core.h"
