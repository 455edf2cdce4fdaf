#include <cstring>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/embedding/embedding_kernels.h"

namespace tessera::ops::cpu {

void embedding_forward(const EmbeddingArguments& a) {
  const std::size_t row_bytes = static_cast<std::size_t>(a.hidden) * quant::size_of(a.type);
  for (std::int64_t token = 0; token < a.tokens; ++token) {
    std::byte* to = static_cast<std::byte*>(a.result) + static_cast<std::size_t>(token) * row_bytes;
    const std::int64_t row = a.part.row_of(a.ids[token]);
    if (row >= 0)
      std::memcpy(to, static_cast<const std::byte*>(a.rows) + static_cast<std::size_t>(row) * row_bytes, row_bytes);
    else
      std::memset(to, 0, row_bytes);
  }
}

void embedding_backward(const EmbeddingArguments& a) {
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t token = 0; token < a.tokens; ++token) {
      const std::int64_t row = a.part.row_of(a.ids[token]);
      if (row < 0) continue;
      const T* __restrict dy = static_cast<const T*>(a.rows) + token * a.hidden;
      auto* __restrict dweight = static_cast<Accumulator<T>*>(a.result) + row * a.hidden;
      for (std::int64_t i = 0; i < a.hidden; ++i) dweight[i] += load(dy[i]);
    }
  });
}

}  // namespace tessera::ops::cpu
