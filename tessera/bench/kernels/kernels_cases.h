// The calls that the benchmark `kernels` measures.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/cuda_only.h"
#include "tessera/bench/kernels/kernels.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/initialise/initialise.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/device_kernels.h"

namespace tessera::bench {

struct KernelCase {
  std::string name;
  double bytes = 0;  // bytes of memory traffic if each input is read once and each output is written once
  // Creates a set of buffers, different for each seed. Returns a function that runs the kernel on these buffers.
  std::function<std::function<void()>(std::uint64_t seed)> prepare;
  double operations = 0;  // multiplications and additions; 0 for kernels that memory limits
};
// Common parts of the cases: sizes, tensors with random values, and the list of cases.
class Cases {
 public:
  explicit Cases(const KernelBench& bench) : bench_(bench), device_(bench.cuda ? at::kCUDA : at::kCPU) {}

  std::vector<KernelCase> cases;

  const KernelBench& bench() const { return bench_; }
  at::Device device() const { return device_; }
  quant::DType wide() const { return quant::accumulator_of(bench_.type); }
  double size(quant::DType type) const { return static_cast<double>(quant::size_of(type)); }
  // Returns the bytes of a matrix of the model's type with one row per token.
  double rows(std::int64_t cols) const { return static_cast<double>(bench_.tokens * cols) * size(bench_.type); }

  at::Tensor empty(at::IntArrayRef shape, quant::DType type) const {
    return ops::make(shape, ops::to_scalar_type(type), device_);
  }
  void fill(const at::Tensor& tensor, std::uint64_t seed) const {
    const std::int64_t count = tensor.numel();
    const ops::NormalFill fill{
        .seed = seed, .name = "bench", .standard_deviation = 1, .logical_cols = count, .rows = 1, .cols = count};
    const quant::DType type = ops::to_dtype(tensor.scalar_type());
    if (bench_.cuda)
      base::cuda_only<ops::cuda::fill_normal>(fill, tensor.data_ptr(), type, ops::stream_of(tensor));
    else
      ops::fill_normal(fill, tensor.data_ptr(), type);
  }
  at::Tensor normal(at::IntArrayRef shape, quant::DType type, std::uint64_t seed) const {
    at::Tensor tensor = empty(shape, type);
    fill(tensor, seed);
    return tensor;
  }
  at::Tensor normal(at::IntArrayRef shape, std::uint64_t seed) const { return normal(shape, bench_.type, seed); }
  // Returns ids from the whole vocabulary, some of them repeated.
  at::Tensor ids(std::uint64_t seed) const {
    at::Tensor ids = ops::make({bench_.tokens}, at::kLong);
    for (std::int64_t i = 0; i < bench_.tokens; ++i)
      ids.mutable_data_ptr<std::int64_t>()[i] = (i * 7919 + static_cast<std::int64_t>(seed)) % bench_.vocabulary;
    return ids.to(device_);
  }
  // Returns kernels that run on the tensor's stream.
  std::shared_ptr<const quant::Kernels> comm_kernels(const at::Tensor& tensor) const {
    if (!bench_.cuda) return {std::shared_ptr<const quant::Kernels>(), &quant::host_kernels()};
    return quant::make_cuda_kernels(base::cuda_device(tensor.get_device()), ops::stream_of(tensor));
  }

 private:
  KernelBench bench_;
  at::Device device_;
};

// Adds the operators of a layer with experts (kernels_experts.cpp).
void add_experts(Cases& c);

// Returns the cases. The first case is a copy of `copy_bytes` bytes, with which the other cases are compared.
std::vector<KernelCase> kernel_cases(const KernelBench& bench, std::int64_t copy_bytes);

}  // namespace tessera::bench
