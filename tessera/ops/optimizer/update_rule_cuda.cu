#include "tessera/ops/optimizer/update_rule.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

// One block. Each thread copies 8 bytes at a time.
__global__ void choose_kernel(const std::int64_t* choices, std::size_t words, const Clip* clip, std::int64_t* updates,
                              std::int64_t* scalars) {
  if (clip->applies == 0) return;
  const std::int64_t number = *updates + 1, choice = number - choices[0];
  if (choice < 0 || choice >= kScalarChoices) __trap();
  const std::int64_t* chosen = choices + 1 + choice * words;
  for (std::size_t i = threadIdx.x; i < words; i += blockDim.x) scalars[i] = chosen[i];
  __syncthreads();
  if (threadIdx.x == 0) *updates = number;
}

__global__ void decide_kernel(const double* sum_of_squares, double limit, std::int64_t* stops, Clip* clip) {
  ops::decide_update(*sum_of_squares, limit, stops, *clip);
}

}  // namespace

void choose_scalars(const std::byte* choices, std::size_t bytes, const Clip* clip, std::int64_t* updates,
                    std::byte* scalars, base::CudaStream stream) {
  choose_kernel<<<1, kWarp, 0, stream>>>(reinterpret_cast<const std::int64_t*>(choices), bytes / sizeof(std::int64_t),
                                         clip, updates, reinterpret_cast<std::int64_t*>(scalars));
  check_launch("choose_scalars");
}

void decide_update(const double* sum_of_squares, double limit, std::int64_t* stops, Clip* clip,
                   base::CudaStream stream) {
  decide_kernel<<<1, 1, 0, stream>>>(sum_of_squares, limit, stops, clip);
  check_launch("decide_update");
}

}  // namespace tessera::ops::cuda
