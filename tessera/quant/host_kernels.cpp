#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/elementwise.h"
#include "tessera/quant/formats/decoded.h"

namespace tessera::quant {
namespace {

constexpr std::int64_t kBlock = 2048;  // number of elements of a block

template <typename Unsigned>
void sum_integers(Unsigned* out, std::span<const void* const> parts, std::int64_t count) {
  std::array<Unsigned, kBlock> sum;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    sum.fill(0);
    for (const void* part : parts) {
      const auto* values = static_cast<const Unsigned*>(part) + begin;
      for (std::int64_t i = 0; i < size; ++i) sum[i] += values[i];
    }
    std::copy_n(sum.data(), size, out + begin);
  }
}

template <typename T>
double row_squares(const T* row, std::int64_t cols) {
  const std::int64_t lanes = squares_lanes(cols), stride = lanes * kSquaresPiece;
  std::array<double, 256> sums{};
  const auto add = [&](std::int64_t lane, std::int64_t i) {
    const auto value = static_cast<double>(row[i]);
    sums[static_cast<std::size_t>(lane)] += value * value;
  };
  std::int64_t begin = 0;
  for (; begin + stride <= cols; begin += stride)  // the inner loop over lanes can be vectorised
    for (int i = 0; i < kSquaresPiece; ++i)
      for (std::int64_t lane = 0; lane < lanes; ++lane) add(lane, begin + lane * kSquaresPiece + i);
  for (std::int64_t i = begin; i < cols; ++i) add((i - begin) / kSquaresPiece, i);
  double total = 0;
  for (std::int64_t run = 0; run < lanes; run += 32) {
    double* lane = sums.data() + run;
    for (int step = 16; step > 0; step /= 2)
      for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
    total = run == 0 ? lane[0] : total + lane[0];
  }
  return total;
}

class HostKernels final : public Kernels {
 public:
  constexpr HostKernels() = default;
  constexpr ~HostKernels() override {}
  base::Device device() const override { return {}; }
  base::Scratch scratch(std::size_t bytes) const override { return base::Scratch(base::Buffer(bytes)); }

  void copy(const void* source, void* target, std::size_t bytes) const override {
    if (bytes > 0 && source != target) std::memcpy(target, source, bytes);
  }
  void fill(void* target, DType type, double value, std::int64_t count) const override {
    const auto fill_as = [&](auto element) { std::fill_n(static_cast<decltype(element)*>(target), count, element); };
    switch (type) {
      case DType::u8:
        return fill_as(static_cast<std::uint8_t>(value));
      case DType::i32:
        return fill_as(static_cast<std::int32_t>(value));
      case DType::i64:
        return fill_as(static_cast<std::int64_t>(value));
      case DType::bf16:
        return fill_as(bfloat16(static_cast<float>(value)));
      case DType::fp32:
        return fill_as(static_cast<float>(value));
      case DType::fp64:
        return fill_as(value);
    }
  }
  void copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                   std::int64_t rows, std::int64_t cols, std::size_t element_bytes) const override {
    quant::copy_matrix(source, source_stride, target, target_stride, rows, cols, element_bytes);
  }
  void cast(const void* source, DType from, void* target, DType to, std::int64_t count) const override {
    quant::cast(source, from, target, to, count);
  }
  void ordered_sum(void* sum, DType accumulator, bool accumulate, Parts parts, DType type,
                   std::int64_t count) const override {
    quant::ordered_sum(sum, accumulator, accumulate, parts, type, count);
  }
  void ordered_sum_squares(void* sum, DType accumulator, bool accumulate, Parts parts, DType type, std::int64_t rows,
                           std::int64_t cols, double* squares) const override {
    quant::ordered_sum(sum, accumulator, accumulate, parts, type, rows * cols);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t begin = row * cols;
      squares[row] = accumulator == DType::fp64 ? row_squares(static_cast<const double*>(sum) + begin, cols)
                                                : row_squares(static_cast<const float*>(sum) + begin, cols);
    }
  }
  void ordered_sum_bfloat16(bfloat16* out, Parts parts, std::int64_t count) const override {
    quant::ordered_sum_bfloat16(out, parts, count);
  }
  void ordered_sum_integers(void* out, Parts parts, DType type, std::int64_t count) const override {
    if (type == DType::i32) return sum_integers(static_cast<std::uint32_t*>(out), parts, count);
    if (type == DType::i64) return sum_integers(static_cast<std::uint64_t*>(out), parts, count);
    throw Error("ordered_sum_integers: expected i32 or i64, got {}", name_of(type));
  }
  void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target,
                  std::int64_t matrices) const override {
    for (std::int64_t number = 0; number < matrices; ++number)
      quant::dequantize(matrix_of(source, number, matrix, encoding), matrix, encoding,
                        target + number * matrix.elements());
  }
  void decode(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target,
              std::int64_t matrices) const override {
    for (std::int64_t number = 0; number < matrices; ++number)
      quant::decode(matrix_of(source, number, matrix, encoding), matrix, encoding, target + number * matrix.elements());
  }
  void create_columnwise(std::span<const Transposition> weights) const override {
    for (const Transposition& weight : weights) transpose(weight);
  }
  void ordered_extreme(void* out, Parts parts, DType type, std::int64_t count, bool maximum) const override {
    quant::ordered_extreme(out, parts, type, count, maximum);
  }
  void add_exactly(const double* values, std::int64_t count, ExactSum* sum) const override {
    add(*sum, {values, static_cast<std::size_t>(count)});
  }
  void count_not_finite(const float* values, std::int64_t count, std::int64_t* counter) const override {
    *counter += std::count_if(values, values + count, [](float value) { return !std::isfinite(value); });
  }
  void round_exactly(const ExactSum* sum, double* total) const override { *total = rounded(*sum); }
};

constexpr HostKernels kHostKernels;

}  // namespace

const Kernels& host_kernels() {
  return kHostKernels;
}

}  // namespace tessera::quant
