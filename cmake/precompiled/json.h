// The same with JSON.
#pragma once
#include <nlohmann/json.hpp>

#include "cmake/precompiled/core.h"
