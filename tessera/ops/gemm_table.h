// Which of cuBLASLt's candidates a product takes where its first is not the fastest: measured once,
// stored, and so the same on every rank and in every run. Nothing has been measured yet. Data only.
#pragma once
#include <array>
#include <cstdint>

namespace tessera::ops {

struct GemmChoice {
  std::int64_t rows, cols, inner;
  bool left_transposed, right_transposed;
  int candidate;
};
// bf16 products.
inline constexpr std::array<GemmChoice, 0> kGemmTable{};

constexpr int gemm_candidate(std::int64_t rows, std::int64_t cols, std::int64_t inner, bool left_transposed,
                             bool right_transposed) {
  for (const GemmChoice& it : kGemmTable)
    if (it.rows == rows && it.cols == cols && it.inner == inner && it.left_transposed == left_transposed &&
        it.right_transposed == right_transposed)
      return it.candidate;
  return 0;
}

}  // namespace tessera::ops
