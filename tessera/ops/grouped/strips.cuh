// How CUDA kernels divide matrices of experts, whose numbers of rows the host does not know. A thread block processes a
// strip: adjacent rows of one matrix.
#pragma once
#include "tessera/ops/grouped/stacked_rows.h"
#include "tessera/ops/packs.cuh"
#include "tessera/quant/cuda/vectors.cuh"

namespace tessera::ops::cuda {

__device__ inline float number_at(const MatrixNumbers& numbers, std::int64_t matrix) {
  return numbers.values == nullptr ? 1.0F : numbers.values[numbers.is_one ? 0 : matrix];
}

// The strip of a thread block.
struct Strip {
  std::int64_t matrix = 0, first = 0;  // the matrix, and the index of the strip's first row in it
  std::int64_t row = 0, to = 0;        // the first rows in the source and in the result
  int rows = 0, to_rows = 0;           // rows of the source and of the result; to_rows is 0 if there is no strip
};

// Returns the number of matrices whose strips end before this block's strip. All threads get the same number.
__device__ inline std::int64_t matrix_of_block(const std::int32_t* strip_ends, std::int64_t matrices) {
  int before = 0;
  for (std::int64_t i = threadIdx.x % kWarp; i < matrices; i += kWarp)
    before += strip_ends[i] <= static_cast<std::int64_t>(blockIdx.x) ? 1 : 0;
  return __reduce_add_sync(0xFFFFFFFFU, before);
}

template <int kRows>
__device__ Strip strip_of_block(const StackedRows& source, const StripPlaces& places, bool is_spread) {
  Strip strip;
  if (source.ends == nullptr) {
    const std::int64_t each = ceil_div(source.height, kRows);
    strip.matrix = blockIdx.x / each;
    strip.first = blockIdx.x % each * kRows;
    strip.row = strip.to = strip.matrix * source.height + strip.first;
    strip.rows = strip.to_rows = static_cast<int>(min(std::int64_t{kRows}, source.height - strip.first));
    return strip;
  }
  strip.matrix = matrix_of_block(places.strip_ends, source.matrices);
  if (strip.matrix == source.matrices) return strip;
  const auto begin_of = [&](const std::int32_t* ends) {
    return strip.matrix == 0 ? std::int64_t{0} : std::int64_t{ends[strip.matrix - 1]};
  };
  strip.first = (blockIdx.x - begin_of(places.strip_ends)) * kRows;
  strip.row = strip.to = begin_of(source.ends) + strip.first;
  strip.rows = strip.to_rows = static_cast<int>(min(std::int64_t{kRows}, source.ends[strip.matrix] - strip.row));
  if (is_spread) {
    strip.to = begin_of(places.result_ends) + strip.first;
    strip.to_rows = static_cast<int>(min(std::int64_t{kRows}, places.result_ends[strip.matrix] - strip.to));
  }
  return strip;
}

// Returns an upper bound of the number of strips with `rows` rows.
inline std::int64_t strips_of(const StackedRows& source, std::int64_t rows) {
  return source.ends == nullptr ? source.matrices * ceil_div(source.height, rows)
                                : source.room / rows + source.matrices;
}
inline bool is_empty(const StackedRows& source) {
  return source.matrices == 0 || source.cols == 0 || source.room == 0;
}

}  // namespace tessera::ops::cuda
