#pragma once
#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::ops {

// logits: [tokens, vocabulary] of `type`; maximum [tokens], sums [2, tokens], losses [tokens] of its accumulator type.
struct CrossEntropyShape {
  base::DType type = base::DType::fp32;
  std::int64_t tokens = 0, vocabulary = 0, vocab_begin = 0;  // of this rank's slice
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
  void* logits = nullptr;  // replaced by the gradient when scale is not 0
  void* losses = nullptr;
};
namespace cpu {
void cross_entropy_maximum(const CrossEntropyShape& shape, const void* logits, void* maximum);
void cross_entropy_sums(const CrossEntropyShape& shape, const CrossEntropySums& arguments);
void cross_entropy_finish(const CrossEntropyShape& shape, const CrossEntropyFinish& arguments);
}  // namespace cpu

}  // namespace tessera::ops
