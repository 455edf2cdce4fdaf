// How the results of two runs are compared (docs/numerics.md).
#pragma once
#include <string>
#include <vector>

#include "tests/train/training.h"

namespace tessera::train::testing {

// Losses, norms and tensors. What is equal bit for bit is equal as values of fp64; NaN would not be, and must not
// occur.
void expect_same_bits(const RunResult& expected, const RunResult& actual, const std::string& what);

// The bounds of runs in fp64 whose products tp cuts differently: losses and norms within 1e-9 relative, each tensor
// within 1e-9 of its largest element.
void expect_within_fp64_bounds(const RunResult& expected, const RunResult& actual, const std::string& what);

double largest(const std::vector<double>& values);
// Infinite where the sizes differ.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace tessera::train::testing
