// Drops the choices beyond the capacity of the experts. One thread block processes the choices of one expert in one
// block of tokens. It finds the smallest weight that the expert keeps by radix selection: each pass counts the choices
// by the next digit of their weights, from the most significant digit on.
#include <bit>
#include <type_traits>

#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 1024, kDigit = 8, kDigits = 1 << kDigit;  // kDigit: number of bits of a digit

template <typename A>
using Key = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;

// Returns a number with the order of the weights. NaN becomes 0, which is lower than the key of every number.
template <typename A>
__device__ __forceinline__ Key<A> key_of(A weight) {
  if (weight != weight) return 0;
  const auto bits = std::bit_cast<Key<A>>(weight + A{0});  // -0 becomes +0
  constexpr Key<A> kSign = Key<A>{1} << (8 * sizeof(A) - 1);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// The choices of the thread block's expert in its block of tokens.
template <typename A>
struct Choices {
  std::int64_t length, k, expert;
  const std::int32_t* choices;
  const A* weights;

  // Returns the index of the token's choice of the expert. Returns -1 if the token does not choose the expert, and for
  // tokens from `length` on.
  __device__ __forceinline__ std::int64_t find(std::int64_t token) const {
    if (token >= length) return -1;
    std::int64_t found = -1;
    for (std::int64_t i = token * k; i < (token + 1) * k; ++i)
      if (choices[i] == expert) found = i;
    return found;
  }
  __device__ __forceinline__ Key<A> key(std::int64_t choice) const { return key_of(weights[choice]); }
};

struct Digit {
  int value;
  std::int64_t kept;  // number of kept choices with this digit
};
// Returns the digit of the smallest kept key. `counts` contains the number of choices by digit, and `kept` is the
// number of choices to keep. Returns -1 as the digit if there are fewer choices. Overwrites `sums`.
__device__ Digit digit_of_last(const int* counts, int* sums, std::int64_t kept) {
  __shared__ Digit digit;
  const int own = threadIdx.x;
  if (own == 0) digit = {-1, kept};
  if (own < kDigits) sums[own] = counts[own];
  __syncthreads();
  for (int distance = 1; distance < kDigits; distance *= 2) {  // sums[i] becomes the sum of the counts from digit i on
    const int after = own + distance < kDigits ? sums[own + distance] : 0;
    __syncthreads();
    if (own < kDigits) sums[own] += after;
    __syncthreads();
  }
  if (own < kDigits) {
    const std::int64_t above = sums[own] - counts[own];
    if (above < kept && kept <= sums[own]) digit = {own, kept - above};
  }
  __syncthreads();
  const Digit result = digit;
  __syncthreads();
  return result;
}

// Keeps the first `kept` choices with the key `last`. Drops the other choices with this key, and the choices with lower
// keys.
template <typename A>
__device__ void drop(const Choices<A>& own, Key<A> last, std::int64_t kept, std::int32_t* result) {
  __shared__ int equal_in_warp[kThreads / kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  std::int64_t before = 0;  // choices with the key `last` of earlier tokens
  for (std::int64_t begin = 0; begin < own.length; begin += kThreads) {
    const std::int64_t choice = own.find(begin + threadIdx.x);
    const Key<A> key = choice < 0 ? 0 : own.key(choice);
    const bool is_equal = choice >= 0 && key == last;
    const unsigned equal = __ballot_sync(~0u, is_equal);
    if (lane == 0) equal_in_warp[warp] = __popc(equal);
    __syncthreads();
    const int of_warp = equal_in_warp[lane];
    const std::int64_t place = before + warp_sum(lane < warp ? of_warp : 0) + __popc(equal & ((1u << lane) - 1));
    if (choice >= 0 && (key < last || (is_equal && place >= kept))) result[choice] = -1;
    before += warp_sum(of_warp);
    __syncthreads();
  }
}

template <typename A>
__global__ void __launch_bounds__(kThreads) drop_choices(const CapacityArguments a) {
  static_assert(kThreads / kWarp == kWarp && kThreads >= kDigits);
  __shared__ int counts[kDigits], sums[kDigits];
  const std::int64_t first = blockIdx.y * a.length * a.k;
  const Choices<A> own{.length = a.length,
                       .k = a.k,
                       .expert = a.first + blockIdx.x,
                       .choices = a.choices + first,
                       .weights = static_cast<const A*>(a.weights) + first};
  Key<A> last = 0, digits = 0;  // the known digits of the smallest kept key, and a mask of these digits
  std::int64_t kept = a.capacity;
  for (int shift = 8 * static_cast<int>(sizeof(A)) - kDigit; shift >= 0; shift -= kDigit) {
    if (threadIdx.x < kDigits) counts[threadIdx.x] = 0;
    __syncthreads();
    for (std::int64_t token = threadIdx.x; token < a.length; token += kThreads) {
      const std::int64_t choice = own.find(token);
      if (choice < 0) continue;
      const Key<A> key = own.key(choice);
      if ((key & digits) == last) atomicAdd(&counts[key >> shift & (kDigits - 1)], 1);  // the order does not matter
    }
    __syncthreads();
    const Digit digit = digit_of_last(counts, sums, kept);
    if (digit.value < 0) return;  // the expert keeps all choices; only the first pass can return
    last |= static_cast<Key<A>>(digit.value) << shift;
    digits |= static_cast<Key<A>>(kDigits - 1) << shift;
    kept = digit.kept;
  }
  drop(own, last, kept, a.kept + first);
}

}  // namespace

void drop_beyond_capacity(const CapacityArguments& a, base::CudaStream stream) {
  if (a.length == 0 || a.blocks == 0 || a.local == 0) return;
  dispatch_accumulator(a.type, [&](auto element) {
    const dim3 grid(static_cast<unsigned>(a.local), static_cast<unsigned>(a.blocks));
    drop_choices<decltype(element)><<<grid, kThreads, 0, stream>>>(a);
  });
  check_launch("capacity of experts");
}

}  // namespace tessera::ops::cuda
