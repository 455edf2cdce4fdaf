#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops::cuda {

// Pointers refer to memory of the device, row-major. Statistics, angles and gradients of weights have the accumulator
// type of `type`.
struct HeadRows {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  const std::int64_t* positions = nullptr;        // [tokens]
  const void *cosine = nullptr, *sine = nullptr;  // [table_rows, head_dim / 2]
  std::int64_t table_rows = 0;
  const void* stacked = nullptr;                        // [tokens, (q_heads + 2 kv_heads) head_dim]
  const void *q_weight = nullptr, *k_weight = nullptr;  // [head_dim]
};
struct HeadNormForward {
  double q_eps = 0, k_eps = 0;
  void* rstd = nullptr;             // [tokens, q_heads + kv_heads]
  bool reads_rstd = false;          // true: reads rstd; false: computes and writes it
  void *q = nullptr, *k = nullptr;  // [tokens, heads, head_dim]: the results
};
struct HeadNormBackward {
  const void* rstd = nullptr;
  const void *dq = nullptr, *dk = nullptr, *dv = nullptr;  // [tokens, heads, head_dim]
  void* dstacked = nullptr;                                // as HeadRows::stacked
  void *q_dweight = nullptr, *k_dweight = nullptr;         // [head_dim]
  void* scratch = nullptr;                                 // head_norm_scratch() elements
};

// Returns whether the kernels support heads of this size. They support 512 elements in each type.
bool has_head_norm_kernels(quant::DType type, std::int64_t head_dim);
void head_norm_rope_forward(const HeadRows& rows, const HeadNormForward& arguments, base::CudaStream stream);
std::int64_t head_norm_scratch(const HeadRows& rows);
void head_norm_rope_backward(const HeadRows& rows, const HeadNormBackward& arguments, base::CudaStream stream);

}  // namespace tessera::ops::cuda
