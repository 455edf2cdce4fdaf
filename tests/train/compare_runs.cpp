#include "tests/train/compare_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

namespace tessera::train::testing {

namespace {

// Here NaN equals itself, and 0 differs from -0.
std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

}  // namespace

void expect_same_bits(const RunResult& expected, const RunResult& actual, const std::string& what) {
  EXPECT_EQ(bits_of(expected.losses), bits_of(actual.losses)) << what;
  EXPECT_EQ(bits_of(expected.norms), bits_of(actual.norms)) << what;
  ASSERT_EQ(expected.tensors.size(), actual.tensors.size()) << what;
  for (const auto& [name, values] : expected.tensors)
    EXPECT_EQ(bits_of(values), bits_of(actual.tensors.at(name))) << what << ": " << name;
}

void expect_within_fp64_bounds(const RunResult& expected, const RunResult& actual, const std::string& what) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size()) << what;
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-9 * expected.losses[i]) << what << " step " << i;
    EXPECT_NEAR(actual.norms[i], expected.norms[i], 1e-9 * expected.norms[i]) << what << " step " << i;
  }
  for (const auto& [name, values] : expected.tensors)
    EXPECT_LE(largest_difference(values, actual.tensors.at(name)), 1e-9 * largest(values)) << what << " " << name;
}

double largest(const std::vector<double>& values) {
  double found = 0;
  for (double value : values) found = std::max(found, std::abs(value));
  return found;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double found = 0;
  for (std::size_t i = 0; i < a.size(); ++i) found = std::max(found, std::abs(a[i] - b[i]));
  return found;
}

void expect_gradients_of_each_recipe(RunOptions options) {
  options.steps = 1;
  std::set<double> losses, norms;
  const auto add = [&](bool hadamard, nn::GradientRounding rounding, std::uint64_t seed) {
    options.product_options.hadamard = hadamard;
    options.product_options.rounding = rounding;
    options.seed = seed;
    const RunResult result = run(options);
    losses.insert(result.losses.at(0));
    norms.insert(result.norms.at(0));
  };
  using enum nn::GradientRounding;
  for (const bool hadamard : {false, true})
    for (const nn::GradientRounding rounding : {stochastic, nearest}) add(hadamard, rounding, 5);
  EXPECT_EQ(losses.size(), 1);
  EXPECT_EQ(norms.size(), 4);
  add(true, stochastic, 6);
  EXPECT_EQ(norms.size(), 5);
  add(true, nearest, 6);  // nothing is random
  EXPECT_EQ(norms.size(), 5);
}

}  // namespace tessera::train::testing
