// The headers of core.h, JSON and the command line.
#pragma once
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cmake/precompiled/core.h"
