// The same with autograd functions.
#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include "cmake/precompiled/tensors.h"
