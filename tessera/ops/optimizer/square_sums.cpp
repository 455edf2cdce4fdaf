#include "tessera/ops/optimizer/square_sums.h"

#include "tessera/ops/arithmetic.h"

namespace tessera::ops {

void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums, const std::uint8_t* states) {
  dispatch_floating(type, [&](auto element) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto* data = static_cast<const decltype(element)*>(values) + row * stride;
      sums[row] = 0;
      if (states != nullptr && states[row] == 0) continue;
      sums[row] = lane_sum<double>(cols, [data](std::int64_t i) {
        const double value = load(data[i]);
        return value * value;
      });
    }
  });
}

}  // namespace tessera::ops
