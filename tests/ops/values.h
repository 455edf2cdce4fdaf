// Between tensors and plain lists of doubles, in which the references compute.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/base/buffer.h"

namespace tessera::ops::test {

using Values = std::vector<double>;

// Uniform in [-scale, scale), the same on every machine.
Values random_values(std::int64_t count, std::uint64_t seed, double scale = 1.0);
at::Tensor tensor_of(const Values& values, at::IntArrayRef shape, at::ScalarType type);
at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType type, double scale = 1.0);
at::Tensor ids_tensor(const std::vector<std::int64_t>& ids);
Values values_of(const at::Tensor& tensor);

// Largest relative error of one rounding to nearest: half the distance from 1 to the next number.
double roundoff(at::ScalarType type);
double accumulator_roundoff(at::ScalarType type);
at::ScalarType accumulator(at::ScalarType type);

bool same_bits(const at::Tensor& a, const at::Tensor& b);
// A copy of `tensor` that starts `offset` bytes after a multiple of 4096 in `memory`.
at::Tensor moved(const at::Tensor& tensor, std::size_t offset, base::Buffer& memory);

// Every got[i] within bound(i) of expected[i]; NaN never is.
void expect_near(const Values& got, const Values& expected, const std::function<double(std::size_t)>& bound);

// d loss / d x[i] by central differences of `loss` at the fp64 tensor x, step 1e-5.
Values numeric_gradient(at::Tensor x, const std::function<double()>& loss);
// sum of a[i] b[i]
double dot(const at::Tensor& a, const at::Tensor& b);

}  // namespace tessera::ops::test
