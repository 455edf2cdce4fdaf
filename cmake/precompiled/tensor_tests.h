// Headers for tests with tensors.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmake/precompiled/tensors.h"
