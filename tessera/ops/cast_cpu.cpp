#include <cstring>

#include "tessera/ops/cast.h"
#include "tessera/ops/element.h"

namespace tessera::ops {
namespace {

template <typename From, typename To>
void cast_range(const From* __restrict from, To* __restrict to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = round_to<To>(load(from[i]));
}

}  // namespace

void cast(const void* from, quant::DType from_type, void* to, quant::DType to_type, std::int64_t count) {
  if (count == 0) return;
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * quant::size_of(to_type));
    return;
  }
  dispatch_floating(from_type, [&](auto source) {
    dispatch_floating(to_type, [&](auto target) {
      cast_range(static_cast<const decltype(source)*>(from), static_cast<decltype(target)*>(to), count);
    });
  });
}

void add(void* sum, const void* term, quant::DType type, std::int64_t count) {
  dispatch_accumulator(type, [&](auto element) {
    using A = decltype(element);
    auto* __restrict total = static_cast<A*>(sum);
    const auto* __restrict part = static_cast<const A*>(term);
    for (std::int64_t i = 0; i < count; ++i) total[i] += part[i];
  });
}

}  // namespace tessera::ops
