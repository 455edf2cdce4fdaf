// Implements the kernels of row_kernels.h on a stream. One warp processes one row.
#include <limits>
#include <string>
#include <type_traits>

#include "tessera/base/device_guard.h"
#include "tessera/quant/combine.cuh"
#include "tessera/shard/rows/row_kernels.h"

namespace tessera::shard {
namespace {

using quant::bfloat16;
using quant::DType;

constexpr int kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kAhead = 4;       // number of accesses of a lane that are in flight together
constexpr int kFarAway = 0x7F;  // every byte of an index that is greater than all valid indices
constexpr int kNowhere = 0xFF;  // every byte of the index -1

__global__ void __launch_bounds__(kThreads)
    list_rows(const RowIds ids, std::int64_t rows, std::int64_t* list, std::int64_t most) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < most) list[at] = ids.row(at, rows);
}

// Finds the lowest index of each row. The result does not depend on the order of threads.
__global__ void __launch_bounds__(kThreads) find_firsts(const RowSlots a) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = a.ids.row(at, a.rows);
  if (row >= 0) atomicMin(a.map + row, static_cast<std::int32_t>(at));
}
__global__ void __launch_bounds__(kThreads) name_slots(const RowSlots a) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= a.most) return;
  const std::int64_t row = a.ids.row(at, a.rows);
  const std::int64_t first = row >= 0 ? a.map[row] : -1;
  a.firsts[at] = first == at ? row : -1;
  if (at < a.ids.count) a.slots[at] = first;
}

// All lanes of a warp must call this function.
template <typename Word>
__device__ void copy_row(const std::byte* from, std::byte* to, std::int64_t words) {
  const auto* source = reinterpret_cast<const Word*>(from);
  auto* target = reinterpret_cast<Word*>(to);
  for (std::int64_t begin = threadIdx.x % kWarp; begin < words; begin += kAhead * kWarp) {
    Word word[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i * kWarp < words) word[i] = source[begin + i * kWarp];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i * kWarp < words) target[begin + i * kWarp] = word[i];
  }
}

__device__ std::int64_t warp_of_grid() {
  return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
}

template <typename Word>
__global__ void __launch_bounds__(kThreads) give_rows(const RowReading a) {
  const std::int64_t place = warp_of_grid();  // position in the messages to all other ranks
  if (place >= (a.ranks - 1) * a.most) return;
  const std::int64_t peer = place / a.most, at = place % a.most;
  const std::int64_t row = a.requested[(peer < a.rank ? peer : peer + 1) * a.most + at];
  if (!a.is_own(row)) return;
  copy_row<Word>(a.stored + (row - a.begins[a.rank]) * a.row_bytes, a.messages + place * a.row_bytes,
                 a.row_bytes / static_cast<std::int64_t>(sizeof(Word)));
}

template <typename Word>
__global__ void __launch_bounds__(kThreads) take_rows(const RowReading a) {
  const std::int64_t at = warp_of_grid();
  if (at >= a.count) return;
  const std::int64_t row = a.requested[a.rank * a.most + at],
                     words = a.row_bytes / static_cast<std::int64_t>(sizeof(Word));
  std::byte* to = a.out + at * a.row_bytes;
  if (row < 0) {
    for (std::int64_t i = threadIdx.x % kWarp; i < words; i += kWarp) reinterpret_cast<Word*>(to)[i] = Word{};
    return;
  }
  const ByRank<std::byte> messages{nullptr, a.messages, a.most * a.row_bytes, a.rank};
  const std::byte* from = a.is_own(row) ? a.stored + (row - a.begins[a.rank]) * a.row_bytes
                                        : messages.of(a.owner_of(row)) + at * a.row_bytes;
  copy_row<Word>(from, to, words);
}

__global__ void __launch_bounds__(kThreads) place_parts(const RowSum a) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= a.ranks * a.most) return;
  const auto rank = static_cast<int>(index / a.most);
  const std::int64_t at = index % a.most, row = a.indices.of(rank)[at] - a.begin;
  if (row >= 0 && row < a.count) a.map[row * a.ranks + rank] = static_cast<std::int32_t>(at);
}

__device__ bool is_negative_zero(float value) {
  return __float_as_uint(value) == 0x80000000u;
}
__device__ bool is_negative_zero(double value) {
  return static_cast<std::uint64_t>(__double_as_longlong(value)) == std::uint64_t{1} << 63;
}

// Loads N elements of a rank's part of a row, from `column` on. Loads zeros if the rank does not have the row.
template <typename Wire, typename Acc, int N>
__device__ void load_part(const RowSum& a, const std::int32_t* places, int rank, std::int64_t column, Acc (&part)[N]) {
  Wire values[N] = {};
  const std::int64_t at = places[rank];
  if (at >= 0) quant::load(reinterpret_cast<const Wire*>(a.rows.of(rank)) + at * a.columns + column, values);
#pragma unroll
  for (int i = 0; i < N; ++i) part[i] = quant::round_to<Acc>(values[i]);
}
// Adds `part` to `sum`. If is_first is true, the sum is empty and becomes `part`.
template <typename Acc, int N>
__device__ void add_part(Acc (&sum)[N], const Acc (&part)[N], bool is_first) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = is_first ? part[i] : sum[i] + part[i];
}

// Adds N elements of a row, from `column` on, in the order of the tree. Returns whether one of the sums is -0.
template <typename Wire, typename Acc, int N>
__device__ bool add_parts(const RowSum& a, const std::int32_t* places, Acc* sum, std::int64_t column) {
  Acc value[N] = {};
  if (a.accumulate) quant::load(sum + column, value);
  for (int first = 0; first < a.ranks; first += a.node) {
    Acc of_node[N];
    load_part<Wire>(a, places, first, column, of_node);
    for (int rank = first + 1; rank < min(first + a.node, a.ranks); ++rank) {
      Acc part[N];
      load_part<Wire>(a, places, rank, column, part);
      add_part(of_node, part, false);
    }
    add_part(value, of_node, first == 0 && !a.accumulate);
  }
  quant::store(sum + column, value);
  bool found = false;
#pragma unroll
  for (int i = 0; i < N; ++i) found |= is_negative_zero(value[i]);
  return found;
}

template <typename Wire, typename Acc, int N>
__global__ void __launch_bounds__(kThreads, 4) sum_rows(const RowSum a) {
  const std::int64_t row = warp_of_grid();
  if (row >= a.count) return;
  const int lane = threadIdx.x % kWarp;
  const std::int32_t* places = a.map + row * a.ranks;
  Acc* sum = static_cast<Acc*>(a.sum) + row * a.columns;
  const std::uint8_t state = a.states[row];
  bool is_given = false;
  for (int rank = 0; rank < a.ranks; ++rank) is_given |= places[rank] >= 0;

  if (!is_given && !a.accumulate) {
    if (state == 0 && !a.clear) return;
    const Acc zeros[N] = {};
    for (std::int64_t column = lane * N; column < a.columns; column += kWarp * N) quant::store(sum + column, zeros);
    __syncwarp();  // all lanes have read the state
    if (lane == 0) a.states[row] = 0;
    return;
  }
  if (!is_given && (state & kRowHasNegativeZero) == 0) return;
  bool found = false;
  for (std::int64_t column = lane * N; column < a.columns; column += kWarp * N)
    found |= add_parts<Wire, Acc, N>(a, places, sum, column);
  found = __any_sync(~0u, found);
  if (lane == 0) a.states[row] = kRowWritten | (found ? kRowHasNegativeZero : 0);
}

using base::blocks_for, base::is_aligned;

// Calls visit(word) with the widest word to which all rows are aligned.
template <typename Visit>
void with_word(const RowReading& a, Visit visit) {
  const auto bits = reinterpret_cast<std::uintptr_t>(a.stored) | reinterpret_cast<std::uintptr_t>(a.messages) |
                    reinterpret_cast<std::uintptr_t>(a.out) | static_cast<std::uintptr_t>(a.row_bytes);
  if (bits % 16 == 0) return visit(uint4{});
  if (bits % 8 == 0) return visit(uint2{});
  if (bits % 4 == 0) return visit(std::uint32_t{});
  if (bits % 2 == 0) return visit(std::uint16_t{});
  visit(std::uint8_t{});
}

// Calls visit(wire, accumulator) with values of the device types.
template <typename Visit>
void with_types(const RowSum& a, Visit visit) {
  const auto with_accumulator = [&](auto wire) {
    if (a.accumulator == DType::fp32) return visit(wire, float{});
    if (a.accumulator == DType::fp64) return visit(wire, double{});
    base::fail("sum of rows: expected an accumulator of fp32 or fp64, got " + std::string(name_of(a.accumulator)));
  };
  if (a.wire == DType::bf16) return with_accumulator(bfloat16{});
  if (a.wire == DType::fp32) return with_accumulator(float{});
  if (a.wire == DType::fp64) return with_accumulator(double{});
  base::fail("sum of rows: expected a floating type, got " + std::string(name_of(a.wire)));
}

class CudaRowKernels final : public RowKernels {
 public:
  CudaRowKernels(base::Device device, base::CudaStream stream) : device_(device), stream_(stream) {}

  void list(const RowIds& ids, std::int64_t rows, std::int64_t* list, std::int64_t most) const override {
    if (most == 0) return;
    const base::DeviceGuard guard(device_);
    list_rows<<<blocks_for(most, kThreads), kThreads, 0, stream_>>>(ids, rows, list, most);
    TESSERA_CUDA_CHECK(cudaGetLastError());
  }

  void find_slots(const RowSlots& a) const override {
    if (a.most == 0) return;
    const base::DeviceGuard guard(device_);
    fill(a.map, kFarAway, a.rows);
    const unsigned blocks = blocks_for(a.most, kThreads);  // ids.count is at most a.most
    find_firsts<<<blocks, kThreads, 0, stream_>>>(a);
    name_slots<<<blocks, kThreads, 0, stream_>>>(a);
    TESSERA_CUDA_CHECK(cudaGetLastError());
  }

  void give(const RowReading& a) const override {
    const std::int64_t places = (a.ranks - 1) * a.most;
    if (places == 0 || a.row_bytes == 0) return;
    const base::DeviceGuard guard(device_);
    with_word(a,
              [&](auto word) { give_rows<decltype(word)><<<blocks_for(places, kWarps), kThreads, 0, stream_>>>(a); });
    TESSERA_CUDA_CHECK(cudaGetLastError());
  }

  void take(const RowReading& a) const override {
    if (a.count == 0 || a.row_bytes == 0) return;
    const base::DeviceGuard guard(device_);
    with_word(a,
              [&](auto word) { take_rows<decltype(word)><<<blocks_for(a.count, kWarps), kThreads, 0, stream_>>>(a); });
    TESSERA_CUDA_CHECK(cudaGetLastError());
  }

  void sum(const RowSum& a) const override {
    if (a.count == 0) return;
    const base::DeviceGuard guard(device_);
    fill(a.map, kNowhere, a.count * a.ranks);
    if (a.most > 0) place_parts<<<blocks_for(a.ranks * a.most, kThreads), kThreads, 0, stream_>>>(a);
    with_types(a, [&](auto wire, auto accumulator) {
      using Wire = decltype(wire);
      using Acc = decltype(accumulator);
      constexpr int N = 16 / static_cast<int>(sizeof(Wire));
      const bool whole = a.columns % N == 0 && is_aligned(a.rows.own, 16) && is_aligned(a.rows.others, 16) &&
                         is_aligned(a.sum, quant::kAccess<Acc, N>);
      const unsigned blocks = blocks_for(a.count, kWarps);
      if (whole)
        sum_rows<Wire, Acc, N><<<blocks, kThreads, 0, stream_>>>(a);
      else
        sum_rows<Wire, Acc, 1><<<blocks, kThreads, 0, stream_>>>(a);
    });
    TESSERA_CUDA_CHECK(cudaGetLastError());
  }

 private:
  void fill(std::int32_t* map, int byte, std::int64_t count) const {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int32_t);
    TESSERA_CUDA_CHECK(cudaMemsetAsync(map, byte, bytes, stream_));
  }

  const base::Device device_;
  const base::CudaStream stream_;
};

}  // namespace

namespace detail {

std::unique_ptr<RowKernels> make_cuda_row_kernels(base::Device device, base::CudaStream stream) {
  return std::make_unique<CudaRowKernels>(device, stream);
}

}  // namespace detail

}  // namespace tessera::shard
