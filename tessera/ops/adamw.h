// AdamW over a flat shard (Loshchilov & Hutter 2019), as torch.optim.AdamW: decoupled decay, bias correction, eps
// outside the square root. The result of an element depends on that element alone, not on its position or the cut of
// the range.
#pragma once
#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::ops {

struct AdamW {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;      // from 1
  double gradient_scale = 1;  // clip factor, multiplied into the gradient
};
struct AdamWBuffers {
  void* master = nullptr;  // fp32 or fp64, updated
  base::DType master_type = base::DType::fp32;
  void* weight = nullptr;  // written as round(master); may equal master; null: nothing to write
  base::DType weight_type = base::DType::fp32;
  const void* gradient = nullptr;  // any floating type
  base::DType gradient_type = base::DType::fp32;
  void* exp_avg = nullptr;     // master_type, updated
  void* exp_avg_sq = nullptr;  // master_type, updated
  std::int64_t count = 0;
};
void adamw(const AdamW& options, const AdamWBuffers& buffers);

// sums[r] = sum over the row of value^2 in fp64, elements in a fixed order that depends on `cols` alone.
void row_square_sums(const void* values, base::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums);

}  // namespace tessera::ops
