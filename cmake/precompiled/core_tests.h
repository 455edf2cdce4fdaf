// Headers for tests without tensors.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmake/precompiled/core.h"
