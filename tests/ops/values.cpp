#include "tests/ops/values.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tessera/ops/aten_types.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/elementwise.h"

namespace tessera::ops::test {

Values random_values(std::int64_t count, std::uint64_t seed, double scale) {
  Values values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (double& value : values) {  // splitmix64
    state += 0x9E3779B97F4A7C15u;
    std::uint64_t z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    value = scale * (static_cast<double>(z >> 11) * 0x1p-52 - 1.0);
  }
  return values;
}

at::Tensor tensor_of(const Values& values, at::IntArrayRef shape, const at::TensorOptions& options) {
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  at::Tensor tensor = make(shape, type);
  EXPECT_EQ(static_cast<std::size_t>(tensor.numel()), values.size());
  quant::cast(values.data(), quant::DType::fp64, tensor.mutable_data_ptr(), to_dtype(type), tensor.numel());
  return tensor.to(options.device());
}

at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed, const at::TensorOptions& options, double scale) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return tensor_of(random_values(count, seed, scale), shape, options);
}

at::Tensor ids_tensor(const std::vector<std::int64_t>& ids, at::Device device) {
  at::Tensor tensor = make({static_cast<std::int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor.to(device);
}

Values values_of(const at::Tensor& tensor) {
  const at::Tensor source = tensor.cpu().contiguous();
  Values values(static_cast<std::size_t>(source.numel()));
  quant::cast(source.const_data_ptr(), to_dtype(source.scalar_type()), values.data(), quant::DType::fp64,
              source.numel());
  return values;
}

double roundoff(at::ScalarType type) {
  if (type == at::kBFloat16) return 0x1p-8;
  return type == at::kFloat ? 0x1p-24 : 0x1p-53;
}
at::ScalarType accumulator(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}
at::TensorOptions accumulator(const at::TensorOptions& options) {
  return options.dtype(accumulator(c10::typeMetaToScalarType(options.dtype())));
}
double accumulator_roundoff(at::ScalarType type) {
  return roundoff(accumulator(type));
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.cpu().contiguous(), right = b.cpu().contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         (left.numel() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

at::Tensor shifted(const at::Tensor& tensor, std::int64_t elements) {
  const at::Tensor memory = make({tensor.numel() + elements}, tensor.scalar_type(), tensor.device());
  return memory.narrow(0, elements, tensor.numel()).view(tensor.sizes()).copy_(tensor);
}

void expect_near(const Values& got, const Values& expected, const std::function<double(std::size_t)>& bound) {
  ASSERT_EQ(got.size(), expected.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - expected[i]) <= bound(i)) continue;
    if (++wrong <= 3)
      ADD_FAILURE() << "element " << i << ": got " << got[i] << ", expected " << expected[i] << " within " << bound(i);
  }
  EXPECT_EQ(wrong, 0u) << "of " << got.size() << " elements";
}

Values numeric_gradient(const at::Tensor& x, const std::function<double()>& loss) {
  constexpr double step = 1e-5;
  Values gradient(static_cast<std::size_t>(x.numel()));
  double* data = x.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double value = data[i];
    data[i] = value + step;
    const double above = loss();
    data[i] = value - step;
    const double below = loss();
    data[i] = value;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

double dot(const at::Tensor& a, const at::Tensor& b) {
  const Values left = values_of(a), right = values_of(b);
  double sum = 0;
  for (std::size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
  return sum;
}

bool has_cuda() {
  return at::hasCUDA();
}

std::vector<Kind> every_kind() {
  std::vector<Kind> kinds;
  for (const at::DeviceType device : {at::kCPU, at::kCUDA})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) kinds.push_back({type, device});
  return kinds;
}

std::string name_of_kind(const testing::TestParamInfo<Kind>& info) {
  return std::string(name_of(to_dtype(info.param.type))) + (info.param.device == at::kCUDA ? "_cuda" : "");
}

void KindTest::SetUp() {
  if (GetParam().device == at::kCUDA && !has_cuda()) GTEST_SKIP() << "no CUDA device";
}

}  // namespace tessera::ops::test
