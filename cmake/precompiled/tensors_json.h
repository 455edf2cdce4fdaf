// The headers of tensors.h, and JSON.
#pragma once
#include <nlohmann/json.hpp>

#include "cmake/precompiled/tensors.h"
