// Converts between tensors and lists of doubles, with which the references compute. Also has the base of tests over
// element types and devices.
#pragma once
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::ops::test {

using Values = std::vector<double>;

// Returns uniform random numbers in [-scale, scale). The numbers are equal on every machine.
Values random_values(std::int64_t count, std::uint64_t seed, double scale = 1.0);
// `options` contains element type and device. An element type alone means the CPU.
at::Tensor tensor_of(const Values& values, at::IntArrayRef shape, const at::TensorOptions& options);
at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed, const at::TensorOptions& options,
                         double scale = 1.0);
at::Tensor ids_tensor(const std::vector<std::int64_t>& ids, at::Device device = at::kCPU);
Values values_of(const at::Tensor& tensor);

// Returns the largest relative error of one rounding to nearest: half the distance from 1 to the next number.
double roundoff(at::ScalarType type);
double accumulator_roundoff(at::ScalarType type);
at::ScalarType accumulator(at::ScalarType type);
at::TensorOptions accumulator(const at::TensorOptions& options);

bool same_bits(const at::Tensor& a, const at::Tensor& b);
// Returns a copy of `tensor` whose data starts `elements` elements after the start of its memory.
at::Tensor shifted(const at::Tensor& tensor, std::int64_t elements);

// Expects every got[i] to be within bound(i) of expected[i]. A NaN fails.
void expect_near(const Values& got, const Values& expected, const std::function<double(std::size_t)>& bound);

// Returns d loss / d x[i] for all i, computed by central differences with step 1e-5. `x` is an fp64 tensor that `loss`
// reads.
Values numeric_gradient(const at::Tensor& x, const std::function<double()>& loss);
// Returns the sum of a[i] * b[i].
double dot(const at::Tensor& a, const at::Tensor& b);

// Returns true if there is a CUDA device.
bool has_cuda();

struct Kind {
  at::ScalarType type;
  at::DeviceType device;
};
std::vector<Kind> every_kind();  // returns fp32, bf16 and fp64, each on the CPU and on CUDA
std::string name_of_kind(const testing::TestParamInfo<Kind>& info);

// The base of tests over kinds. Tests on CUDA are skipped if there is no device.
class KindTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override;
  at::TensorOptions type() const { return at::TensorOptions(GetParam().type).device(GetParam().device); }
  at::Tensor ids(const std::vector<std::int64_t>& ids) const { return ids_tensor(ids, GetParam().device); }
  double u() const { return accumulator_roundoff(GetParam().type); }
  // Returns a bound of the relative error of one rounding to the model's type.
  double once() const { return 1.01 * roundoff(GetParam().type); }
};

}  // namespace tessera::ops::test
