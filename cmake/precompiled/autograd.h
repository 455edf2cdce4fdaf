// The headers of tensors.h, and autograd functions.
#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include "cmake/precompiled/tensors.h"
