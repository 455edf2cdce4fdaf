// Implements the kernels of device_kernels.h on a stream.
#include <algorithm>
#include <limits>
#include <string>

#include "tessera/base/device_guard.h"
#include "tessera/quant/combine.cuh"
#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/cuda_table.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/floating.h"

namespace tessera::quant {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = 2;  // pieces of a thread that are in flight together

template <typename Op, int N>
__global__ void __launch_bounds__(kThreads)
    combine_all(const __grid_constant__ PartList parts, const typename Op::Acc* start, typename Op::Out* out,
                std::int64_t count) {
  const std::int64_t pieces = count / N;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * (kThreads * kGroups) + threadIdx.x;
  std::int64_t at[kGroups];
  bool live[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    at[g] = (first + g * kThreads) * N;
    live[g] = first + g * kThreads < pieces;
  }
  typename Op::Acc value[kGroups][N];
  combine<Op, N, kGroups>(parts, start, out, at, live, value);
  if (N > 1 && blockIdx.x == 0 && pieces * N + threadIdx.x < count) {
    typename Op::Acc one[1][1];
    combine<Op, 1, 1>(parts, start, out, {pieces * N + threadIdx.x}, {true}, one);
  }
}

template <typename T>
__device__ double squared(T value) {
  return __dmul_rn(static_cast<double>(value), static_cast<double>(value));
}

// Uses kLanes threads for each row. The order of the squares is the order that device_kernels.h describes, for aligned
// and for unaligned data.
template <typename Op, int kLanes, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    combine_rows(const __grid_constant__ PartList parts, const typename Op::Acc* start, typename Op::Out* out,
                 std::int64_t rows, std::int64_t cols, double* squares) {
  constexpr int N = kSquaresPiece;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  double sum = 0;
  for (std::int64_t begin = lane * N; row < rows && begin < cols; begin += kLanes * N * kGroups) {
    std::int64_t at[kGroups];
    bool live[kGroups];
    typename Op::Acc value[kGroups][N];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      at[g] = row * cols + begin + g * kLanes * N;
      live[g] = begin + g * kLanes * N < cols;  // if kAligned, the piece is complete
    }
    if constexpr (kAligned) combine<Op, N, kGroups>(parts, start, out, at, live, value);
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      for (int i = 0; i < N; ++i) {
        if (begin + g * kLanes * N + i >= cols) break;
        typename Op::Acc one[1][1] = {{value[g][i]}};
        if constexpr (!kAligned) combine<Op, 1, 1>(parts, start, out, {at[g] + i}, {true}, one);
        sum = __dadd_rn(sum, squared(one[0][0]));
      }
  }
  for (int step = 16; step > 0; step /= 2) sum = __dadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, step));
  if constexpr (kLanes == 32) {
    if (lane == 0 && row < rows) squares[row] = sum;
  } else {
    __shared__ double runs[kLanes / 32];
    if (lane % 32 == 0) runs[lane / 32] = sum;
    __syncthreads();
    if (lane == 0) {
      for (int run = 1; run < kLanes / 32; ++run) sum = __dadd_rn(sum, runs[run]);
      squares[row] = sum;
    }
  }
}

template <typename From, typename To, int N>
__global__ void __launch_bounds__(kThreads) cast_all(const From* source, To* target, std::int64_t count) {
  const std::int64_t pieces = count / N;
  const auto cast_piece = [&](auto size, std::int64_t at) {
    From from[decltype(size)::value];
    To to[decltype(size)::value];
    load(source + at, from);
#pragma unroll
    for (int i = 0; i < decltype(size)::value; ++i) to[i] = round_to<To>(from[i]);
    store(target + at, to);
  };
  const std::int64_t piece = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (piece < pieces) cast_piece(std::integral_constant<int, N>(), piece * N);
  const std::int64_t tail = pieces * N + threadIdx.x;
  if (N > 1 && blockIdx.x == 0 && tail < count) cast_piece(std::integral_constant<int, 1>(), tail);
}

template <typename Word>
__global__ void __launch_bounds__(kThreads) fill_all(Word* target, Word value, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) target[i] = value;
}

// Strides and columns are in words. blockDim.x threads copy a row.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    copy_rows(const Word* source, std::int64_t source_stride, Word* target, std::int64_t target_stride,
              std::int64_t rows, std::int64_t cols) {
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * blockDim.y)
    target[row * target_stride + col] = source[row * source_stride + col];
}

void check(bool condition, const std::string& message) {
  if (!condition) base::fail(message);
}

using base::blocks_for, base::is_aligned;

template <typename Op, int N>
bool can_take(const PartList& parts, const void* start, const void* out) {
  for (int p = 0; p < parts.used; ++p)
    if (!is_aligned(parts.data[p], kAccess<typename Op::In, N>)) return false;
  return is_aligned(start, kAccess<typename Op::Acc, N>) && is_aligned(out, kAccess<typename Op::Out, N>);
}

PartList list_of(Kernels::Parts parts) {
  PartList list;
  for (const void* part : parts) list.data[list.used++] = part;
  return list;
}

// Enqueues on a stream of the current device.
template <typename Op>
void launch_combine(const PartList& parts, const typename Op::Acc* start, typename Op::Out* out, std::int64_t count,
                    base::CudaStream stream) {
  constexpr int N = 16 / static_cast<int>(std::max(sizeof(typename Op::In), sizeof(typename Op::Out)));
  if (can_take<Op, N>(parts, start, out))
    combine_all<Op, N><<<blocks_for(count / N, kThreads * kGroups), kThreads, 0, stream>>>(parts, start, out, count);
  else
    combine_all<Op, 1><<<blocks_for(count, kThreads * kGroups), kThreads, 0, stream>>>(parts, start, out, count);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

void cast_on_stream(const void* source, DType from, void* target, DType to, std::int64_t count,
                    base::CudaStream stream) {
  dispatch_floating(from, "cast from", [&](auto source_type) {
    dispatch_floating(to, "cast to", [&](auto target_type) {
      using From = decltype(source_type);
      using To = decltype(target_type);
      if (count <= 0) return;
      const auto* in = static_cast<const From*>(source);
      auto* out = static_cast<To*>(target);
      if constexpr (std::is_same_v<From, To>) {
        if (source == target) return;
        TESSERA_CUDA_CHECK(cudaMemcpyAsync(target, source, static_cast<std::size_t>(count) * sizeof(To),
                                           cudaMemcpyDeviceToDevice, stream));
      } else {
        constexpr int N = 16 / static_cast<int>(std::min(sizeof(From), sizeof(To)));
        if (is_aligned(in, kAccess<From, N>) && is_aligned(out, kAccess<To, N>))
          cast_all<From, To, N><<<blocks_for(count / N, kThreads), kThreads, 0, stream>>>(in, out, count);
        else
          cast_all<From, To, 1><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(in, out, count);
        TESSERA_CUDA_CHECK(cudaGetLastError());
      }
    });
  });
}

void add_on_stream(void* sum, DType type, const void* term, std::int64_t count, base::CudaStream stream) {
  dispatch_accumulator(type, "add", [&](auto element) {
    using Acc = decltype(element);
    if (count <= 0) return;
    PartList list;
    list.data[list.used++] = term;
    launch_combine<Sum<Acc, Acc, Acc>>(list, static_cast<const Acc*>(sum), static_cast<Acc*>(sum), count, stream);
  });
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(base::Device device, base::CudaStream stream)
      : device_(device), stream_(stream), scratch_(std::make_shared<base::ScratchPool>(device)) {}

  base::Device device() const override { return device_; }
  base::Scratch scratch(std::size_t bytes) const override { return scratch_->take(bytes); }

  void copy(const void* source, void* target, std::size_t bytes) const override;
  void fill(void* target, DType type, double value, std::int64_t count) const override;
  void copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                   std::int64_t rows, std::int64_t cols, std::size_t element_bytes) const override;
  void cast(const void* source, DType from, void* target, DType to, std::int64_t count) const override {
    const base::DeviceGuard guard(device_);
    cast_on_stream(source, from, target, to, count, stream_);
  }
  void ordered_sum(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                   std::int64_t count) const override;
  void ordered_sum_squares(void* sum, DType accumulator, bool accumulate, Parts parts, DType type, std::int64_t rows,
                           std::int64_t cols, double* squares) const override;
  void ordered_sum_bfloat16(bfloat16* out, Parts parts, std::int64_t count) const override;
  void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target,
                  std::int64_t matrices) const override {
    const base::DeviceGuard guard(device_);
    const Dequantization stack{
        .source = source, .matrix = matrix, .encoding = encoding, .target = target, .matrices = matrices};
    cuda::dequantize({&stack, 1}, stream_);
  }
  void decode(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target,
              std::int64_t matrices) const override {
    const base::DeviceGuard guard(device_);
    const Dequantization stack{.source = source,
                               .matrix = matrix,
                               .encoding = encoding,
                               .target = target,
                               .matrices = matrices,
                               .decoded = true};
    cuda::dequantize({&stack, 1}, stream_);
  }
  void ordered_sum_integers(void* out, Parts parts, DType type, std::int64_t count) const override;
  void create_columnwise(std::span<const Transposition> weights) const override {
    const base::DeviceGuard guard(device_);
    cuda::create_columnwise(weights, stream_);
  }
  void ordered_extreme(void* out, Parts parts, DType type, std::int64_t count, bool maximum) const override;
  void add_exactly(const double* values, std::int64_t count, ExactSum* sum) const override {
    const base::DeviceGuard guard(device_);
    cuda::add_exactly(values, count, sum, stream_);
  }
  void count_not_finite(const float* values, std::int64_t count, std::int64_t* counter) const override {
    const base::DeviceGuard guard(device_);
    cuda::count_not_finite(values, count, counter, stream_);
  }
  void round_exactly(const ExactSum* sum, double* total) const override {
    const base::DeviceGuard guard(device_);
    cuda::round_exactly(sum, total, stream_);
  }

 private:
  template <typename Op>
  void launch(const PartList& parts, const typename Op::Acc* start, typename Op::Out* out, std::int64_t count) const;
  template <typename Op>
  void launch_rows(const PartList& parts, const typename Op::Acc* start, typename Op::Out* out, std::int64_t rows,
                   std::int64_t cols, double* squares) const;
  // Combines any number of parts. All but the last parts are combined into scratch; finish(parts, start) then combines
  // the last parts with that result.
  template <typename Op, typename Finish>
  void in_passes(Parts parts, const typename Op::Acc* start, std::int64_t count, Finish finish) const;
  template <typename Op>
  void combine_parts(Parts parts, const typename Op::Acc* start, typename Op::Out* out, std::int64_t count) const {
    in_passes<Op>(parts, start, count,
                  [&](const PartList& last, const typename Op::Acc* from) { launch<Op>(last, from, out, count); });
  }
  template <typename Word>
  void launch_rows_copy(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                        std::int64_t rows, std::int64_t row_bytes) const;

  const base::Device device_;
  const base::CudaStream stream_;
  const std::shared_ptr<base::ScratchPool> scratch_;
};

template <typename Op>
void CudaKernels::launch(const PartList& parts, const typename Op::Acc* start, typename Op::Out* out,
                         std::int64_t count) const {
  const base::DeviceGuard guard(device_);
  launch_combine<Op>(parts, start, out, count, stream_);
}

template <typename Op>
void CudaKernels::launch_rows(const PartList& parts, const typename Op::Acc* start, typename Op::Out* out,
                              std::int64_t rows, std::int64_t cols, double* squares) const {
  const base::DeviceGuard guard(device_);
  const bool aligned = cols % kSquaresPiece == 0 && can_take<Op, kSquaresPiece>(parts, start, out);
  const auto go = [&](auto lanes, auto is_aligned) {
    constexpr int kLanes = decltype(lanes)::value;
    combine_rows<Op, kLanes, decltype(is_aligned)::value>
        <<<blocks_for(rows, kThreads / kLanes), kThreads, 0, stream_>>>(parts, start, out, rows, cols, squares);
  };
  using Short = std::integral_constant<int, 32>;
  using Long = std::integral_constant<int, 256>;
  static_assert(squares_lanes(1) == Short::value && squares_lanes(1 << 20) == Long::value && Long::value == kThreads);
  if (squares_lanes(cols) == Short::value)
    aligned ? go(Short(), std::true_type()) : go(Short(), std::false_type());
  else
    aligned ? go(Long(), std::true_type()) : go(Long(), std::false_type());
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

template <typename Op, typename Finish>
void CudaKernels::in_passes(Parts parts, const typename Op::Acc* start, std::int64_t count, Finish finish) const {
  using Acc = typename Op::Acc;
  if (parts.size() <= kMaxParts) return finish(list_of(parts), start);
  // Intermediate results are in scratch, because a later part may be the same memory as the result.
  base::Scratch between = scratch(static_cast<std::size_t>(count) * sizeof(Acc));
  Acc* value = reinterpret_cast<Acc*>(between.data());
  using Pass = std::conditional_t<std::is_same_v<Op, Sum<Acc, typename Op::In, typename Op::Out>>,
                                  Sum<Acc, typename Op::In, Acc>, Op>;
  for (; parts.size() > kMaxParts; parts = parts.subspan(kMaxParts)) {
    launch<Pass>(list_of(parts.first(kMaxParts)), start, value, count);
    start = value;
  }
  finish(list_of(parts), start);
}

void CudaKernels::copy(const void* source, void* target, std::size_t bytes) const {
  if (bytes == 0 || source == target) return;
  const base::DeviceGuard guard(device_);
  TESSERA_CUDA_CHECK(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream_));
}

void CudaKernels::fill(void* target, DType type, double value, std::int64_t count) const {
  if (count <= 0) return;
  const base::DeviceGuard guard(device_);
  const auto fill_with = [&](auto word) {
    fill_all<<<blocks_for(count, kThreads), kThreads, 0, stream_>>>(static_cast<decltype(word)*>(target), word, count);
  };
  switch (type) {
    case DType::u8:
      fill_with(static_cast<std::uint8_t>(value));
      break;
    case DType::i32:
      fill_with(static_cast<std::int32_t>(value));
      break;
    case DType::i64:
      fill_with(static_cast<std::int64_t>(value));
      break;
    case DType::bf16:
      fill_with(bfloat16(static_cast<float>(value)).bits);
      break;
    case DType::fp32:
      fill_with(static_cast<float>(value));
      break;
    case DType::fp64:
      fill_with(value);
      break;
  }
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

template <typename Word>
void CudaKernels::launch_rows_copy(const void* source, std::int64_t source_stride, void* target,
                                   std::int64_t target_stride, std::int64_t rows, std::int64_t row_bytes) const {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Word));
  constexpr std::int64_t kMaxBlocks = 65535;  // largest grid size along y
  const std::int64_t cols = row_bytes / kBytes;
  unsigned along = 1;
  while (along < static_cast<unsigned>(kThreads) && along < cols) along *= 2;
  const dim3 threads(along, static_cast<unsigned>(kThreads) / along);
  const dim3 grid(blocks_for(cols, along),
                  static_cast<unsigned>(std::min<std::int64_t>(kMaxBlocks, blocks_for(rows, threads.y))));
  copy_rows<<<grid, threads, 0, stream_>>>(static_cast<const Word*>(source), source_stride / kBytes,
                                           static_cast<Word*>(target), target_stride / kBytes, rows, cols);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

void CudaKernels::copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                              std::int64_t rows, std::int64_t cols, std::size_t element_bytes) const {
  if (rows <= 0 || cols <= 0) return;
  const auto element = static_cast<std::int64_t>(element_bytes);
  if (rows == 1 || (source_stride == cols && target_stride == cols))
    return copy(source, target, static_cast<std::size_t>(rows * cols * element));
  const base::DeviceGuard guard(device_);
  // Use the widest word to which all rows of both matrices are aligned.
  const auto bits = reinterpret_cast<std::uintptr_t>(source) | reinterpret_cast<std::uintptr_t>(target) |
                    static_cast<std::uintptr_t>(source_stride * element) |
                    static_cast<std::uintptr_t>(target_stride * element) | static_cast<std::uintptr_t>(cols * element);
  const auto go = [&](auto word) {
    launch_rows_copy<decltype(word)>(source, source_stride * element, target, target_stride * element, rows,
                                     cols * element);
  };
  if (bits % 16 == 0) return go(uint4{});
  if (bits % 8 == 0) return go(uint2{});
  if (bits % 4 == 0) return go(std::uint32_t{});
  if (bits % 2 == 0) return go(std::uint16_t{});
  go(std::uint8_t{});
}

void CudaKernels::ordered_sum(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                              std::int64_t count) const {
  check(!parts.empty() || accumulate, "ordered_sum: expected at least one part, or accumulate = true, got no parts");
  dispatch_accumulator(accumulator, "ordered_sum", [&](auto acc) {
    dispatch_floating(type, "ordered_sum", [&](auto part) {
      using Acc = decltype(acc);
      auto* out = static_cast<Acc*>(sum);
      if (count > 0 && !parts.empty())
        combine_parts<Sum<Acc, decltype(part), Acc>>(parts, accumulate ? out : nullptr, out, count);
    });
  });
}

void CudaKernels::ordered_sum_squares(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                                      std::int64_t rows, std::int64_t cols, double* squares) const {
  check(!parts.empty() || accumulate,
        "ordered_sum_squares: expected at least one part, or accumulate = true, got no parts");
  dispatch_accumulator(accumulator, "ordered_sum_squares", [&](auto acc) {
    dispatch_floating(type, "ordered_sum_squares", [&](auto part) {
      using Acc = decltype(acc);
      using Op = Sum<Acc, decltype(part), Acc>;
      auto* out = static_cast<Acc*>(sum);
      if (rows <= 0) return;
      in_passes<Op>(parts, accumulate ? out : nullptr, rows * cols, [&](const PartList& last, const Acc* from) {
        launch_rows<Op>(last, from, out, rows, cols, squares);
      });
    });
  });
}

void CudaKernels::ordered_sum_bfloat16(bfloat16* out, Parts parts, std::int64_t count) const {
  check(!parts.empty(), "ordered_sum_bfloat16: expected at least one part, got 0");
  if (count > 0) combine_parts<Sum<float, bfloat16, bfloat16>>(parts, nullptr, out, count);
}

void CudaKernels::ordered_sum_integers(void* out, Parts parts, DType type, std::int64_t count) const {
  check(!parts.empty(), "ordered_sum_integers: expected at least one part, got 0");
  const auto sum = [&](auto word) {
    using Word = decltype(word);
    if (count > 0) combine_parts<Sum<Word, Word, Word>>(parts, nullptr, static_cast<Word*>(out), count);
  };
  if (type == DType::i32) return sum(std::uint32_t{});
  if (type == DType::i64) return sum(std::uint64_t{});
  base::fail("ordered_sum_integers: expected i32 or i64, got " + std::string(name_of(type)));
}

void CudaKernels::ordered_extreme(void* out, Parts parts, DType type, std::int64_t count, bool maximum) const {
  check(!parts.empty(), "ordered_extreme: expected at least one part, got 0");
  const auto take = [&](auto element) {
    using T = decltype(element);
    if (count <= 0) return;
    if (maximum)
      combine_parts<Extreme<T, true>>(parts, nullptr, static_cast<T*>(out), count);
    else
      combine_parts<Extreme<T, false>>(parts, nullptr, static_cast<T*>(out), count);
  };
  switch (type) {
    case DType::u8:
      return take(std::uint8_t{});
    case DType::i32:
      return take(std::int32_t{});
    case DType::i64:
      return take(std::int64_t{});
    default:
      return dispatch_floating(type, "ordered_extreme", take);
  }
}

std::unique_ptr<Kernels> make_kernels(base::Device device, base::CudaStream stream) {
  return std::make_unique<CudaKernels>(device, stream);
}

constexpr CudaTable kTable{.make_kernels = make_kernels,
                           .cast = cast_on_stream,
                           .add = add_on_stream,
                           .make_master_cast = cuda::make_master_cast,
                           .copy_halves = cuda::copy_halves,
                           .dequantize = cuda::dequantize,
                           .take_amaxes = cuda::take_amaxes,
                           .cast_fp8 = cuda::cast_fp8,
                           .cast_blocks = cuda::cast_blocks,
                           .take_operand_amaxes = cuda::take_operand_amaxes,
                           .cast_operand = cuda::cast_operand,
                           .scale_of_amax = cuda::scale_of_amax,
                           .update_multipliers = cuda::update_multipliers,
                           .create_columnwise = cuda::create_columnwise,
                           .pad_scales = cuda::pad_scales,
                           .swizzle_scales = cuda::swizzle_scales};

}  // namespace

const CudaTable* cuda_table() {
  return &kTable;
}

}  // namespace tessera::quant
