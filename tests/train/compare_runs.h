// Compares the results of two runs (docs/numerics.md).
#pragma once
#include <string>
#include <vector>

#include "tests/train/training.h"

namespace tessera::train::testing {

// Compares losses, norms and tensors. Equal bits are compared as equal fp64 values. A NaN would compare as unequal and
// must not occur.
void expect_same_bits(const RunResult& expected, const RunResult& actual, const std::string& what);

// Checks the bounds for fp64 runs with different tp sizes: losses and norms within 1e-9 relative, each tensor within
// 1e-9 of its largest element.
void expect_within_fp64_bounds(const RunResult& expected, const RunResult& actual, const std::string& what);

double largest(const std::vector<double>& values);
// Returns infinity if the sizes differ.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace tessera::train::testing
