// These kernels run at start-up and for checkpoints. An update joins and splits masters itself (adamw_cuda.cu).
#include "tessera/ops/optimizer/split_master.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Calls function(i) for each element.
template <typename Function>
__global__ void __launch_bounds__(kThreads) for_each_element(std::int64_t count, const Function function) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) function(i);
}

template <typename Function>
void run(std::int64_t count, base::CudaStream stream, const Function& function) {
  if (count == 0) return;
  for_each_element<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(count, function);
  check_launch("masters");
}

struct MakeRepresentable {
  float* masters;
  __device__ void operator()(std::int64_t i) const { masters[i] = representable(masters[i]); }
};
struct Split {
  const float* masters;
  SplitMasters to;
  __device__ void operator()(std::int64_t i) const {
    to.weights[i] = quant::bfloat16(masters[i]);
    to.low_halves[i] = low_half(masters[i]);
  }
};
struct Join {
  SplitMasters from;
  float* masters;
  __device__ void operator()(std::int64_t i) const { masters[i] = joined_master(from.weights[i], from.low_halves[i]); }
};

}  // namespace

void make_representable(float* masters, std::int64_t count, base::CudaStream stream) {
  run(count, stream, MakeRepresentable{masters});
}

void split_masters(const float* masters, std::int64_t count, const SplitMasters& to, base::CudaStream stream) {
  run(count, stream, Split{masters, to});
}

void join_masters(const SplitMasters& from, std::int64_t count, float* masters, base::CudaStream stream) {
  run(count, stream, Join{from, masters});
}

}  // namespace tessera::ops::cuda
