#include "tessera/quant/formats/hadamard.h"

#include <algorithm>

namespace tessera::quant {

void transform_columns(const bfloat16* source, Extent matrix, bfloat16* target) {
  for (std::int64_t first = 0; first < matrix.rows; first += kHadamard) {
    const std::int64_t rows = std::min<std::int64_t>(kHadamard, matrix.rows - first);
    for (std::int64_t col = 0; col < matrix.cols; ++col) {
      float values[kHadamard] = {};
      for (std::int64_t row = 0; row < rows; ++row)
        values[row] = static_cast<float>(source[(first + row) * matrix.cols + col]);
      hadamard_sums(values);
      for (std::int64_t row = 0; row < kHadamard; ++row)
        target[(first + row) * matrix.cols + col] = bfloat16(values[row] * kHadamardFactor);
    }
  }
}

}  // namespace tessera::quant
