#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/id_ranges.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// `logits` is [tokens, vocabulary] of `type`. maximum [tokens], sums [2, tokens] and losses [tokens] have the
// accumulator type.
struct CrossEntropyShape {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, vocabulary = 0;  // vocabulary: columns on this rank
  IdRanges part;                            // ids of these columns; the kernel for the maximum does not read `part`
};
struct CrossEntropyMaximum {
  const void* logits = nullptr;
  void* maximum = nullptr;
};
struct CrossEntropySums {
  const void* logits = nullptr;
  const void* maximum = nullptr;
  const std::int64_t* targets = nullptr;
  void* sums = nullptr;
};
struct CrossEntropyFinish {
  const void* maximum = nullptr;
  const void* sums = nullptr;
  const std::int64_t* targets = nullptr;
  double scale = 0;
  void* logits = nullptr;  // overwritten with the gradient if scale is not 0
  void* losses = nullptr;
};
namespace cpu {
void cross_entropy_maximum(const CrossEntropyShape& shape, const CrossEntropyMaximum& arguments);
void cross_entropy_sums(const CrossEntropyShape& shape, const CrossEntropySums& arguments);
void cross_entropy_finish(const CrossEntropyShape& shape, const CrossEntropyFinish& arguments);
}  // namespace cpu

struct SumInOrder {
  quant::DType type = quant::DType::fp32;  // type of the terms: an accumulator type
  std::int64_t count = 0;
  const void* terms = nullptr;
  void* scratch = nullptr;  // sum_in_order_scratch(count) elements
  double* sum = nullptr;    // receives the sum
};
namespace cuda {  // the loss and the gradient of a token with a target below -1 become NaN
void cross_entropy_maximum(const CrossEntropyShape& shape, const CrossEntropyMaximum& arguments,
                           base::CudaStream stream);
void cross_entropy_sums(const CrossEntropyShape& shape, const CrossEntropySums& arguments, base::CudaStream stream);
void cross_entropy_finish(const CrossEntropyShape& shape, const CrossEntropyFinish& arguments, base::CudaStream stream);
std::int64_t sum_in_order_scratch(std::int64_t count);
void sum_in_order(const SumInOrder& arguments, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
