// The headers of core.h, and JSON.
#pragma once
#include <nlohmann/json.hpp>

#include "cmake/precompiled/core.h"
