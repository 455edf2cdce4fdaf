// The cuBLASLt candidates of products whose first candidate is not the fastest. The candidates were measured once and
// are stored here, so every rank and every run uses the same candidates. `tessera bench products` prints these lines.
#pragma once
#include <array>
#include <cstdint>

namespace tessera::ops {

struct GemmChoice {
  std::int64_t rows, cols, inner;
  bool left_transposed, right_transposed;
  int candidate;
};
// bf16 products with bf16 results of Llama-3-8B with 8192, 2048 and 1024 tokens (cuBLASLt 13.1, H200). Each candidate
// was called repeatedly for 0.1 to 0.2 s while the GPU ran at its power limit. For products that are not listed, the
// first candidate was the fastest or less than 1 percent slower.
inline constexpr std::array<GemmChoice, 29> kGemmTable{{
    {8192, 6144, 4096, false, true, 3},    {8192, 28672, 4096, false, true, 7},  {28672, 4096, 8192, true, false, 2},
    {8192, 14336, 4096, false, false, 7},  {8192, 128256, 4096, false, true, 6}, {128256, 4096, 8192, true, false, 2},
    {2048, 6144, 4096, false, true, 1},    {2048, 4096, 6144, false, false, 1},  {6144, 4096, 2048, true, false, 6},
    {2048, 4096, 4096, false, true, 1},    {2048, 4096, 4096, false, false, 1},  {4096, 4096, 2048, true, false, 1},
    {2048, 28672, 4096, false, true, 4},   {2048, 4096, 28672, false, false, 1}, {28672, 4096, 2048, true, false, 5},
    {2048, 4096, 14336, false, true, 1},   {4096, 14336, 2048, true, false, 7},  {2048, 128256, 4096, false, true, 2},
    {2048, 4096, 128256, false, false, 1}, {128256, 4096, 2048, true, false, 2}, {4096, 4096, 1024, true, false, 2},
    {1024, 28672, 4096, false, true, 5},   {1024, 4096, 28672, false, false, 1}, {28672, 4096, 1024, true, false, 5},
    {1024, 14336, 4096, false, false, 2},  {4096, 14336, 1024, true, false, 7},  {1024, 128256, 4096, false, true, 6},
    {1024, 4096, 128256, false, false, 1}, {128256, 4096, 1024, true, false, 5},
}};

constexpr int gemm_candidate(std::int64_t rows, std::int64_t cols, std::int64_t inner, bool left_transposed,
                             bool right_transposed) {
  for (const GemmChoice& it : kGemmTable)
    if (it.rows == rows && it.cols == cols && it.inner == inner && it.left_transposed == left_transposed &&
        it.right_transposed == right_transposed)
      return it.candidate;
  return 0;
}

}  // namespace tessera::ops
