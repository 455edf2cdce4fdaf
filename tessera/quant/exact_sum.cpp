#include "tessera/quant/exact_sum.h"

#include <algorithm>

namespace tessera::quant {

void add(ExactSum& sum, std::span<const double> values) {
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), static_cast<std::size_t>(kMaxExactAdditions));
    for (const double value : values.first(count)) add(sum, value);
    normalise(sum);
    values = values.subspan(count);
  }
}

}  // namespace tessera::quant
