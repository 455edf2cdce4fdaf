// Compares the results of two runs (docs/numerics.md).
#pragma once
#include <string>
#include <vector>

#include "tests/train/training.h"

namespace tessera::train::testing {

// Expects that losses, norms and tensors have equal bits. They are compared as fp64 values. NaNs must not occur,
// because a NaN compares as unequal.
void expect_same_bits(const RunResult& expected, const RunResult& actual, const std::string& what);

// Expects that two fp64 runs with different tp are within these bounds: a relative difference of 1e-9 for losses and
// norms, and for each tensor a difference of 1e-9 times its largest element.
void expect_within_fp64_bounds(const RunResult& expected, const RunResult& actual, const std::string& what);

double largest(const std::vector<double>& values);
// Returns the largest difference between elements, or infinity if the sizes differ.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

// Runs one step with products in nvfp4, with each combination of --nvfp4-hadamard and --nvfp4-rounding. Expects that
// the loss never changes, because the forward pass does not depend on them, and that each combination has other
// gradients. The seed changes gradients only with stochastic rounding.
void expect_gradients_of_each_recipe(RunOptions options);

}  // namespace tessera::train::testing
