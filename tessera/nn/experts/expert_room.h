// The memory for the rows of experts on a GPU, where the host does not know the number of rows.
#pragma once
#include "tessera/ops/experts/selection.h"

namespace tessera::nn {

// A rank with more rows than its room drops rows and raises a counter. Results of such a step or evaluation must not be
// used; it is repeated with more room. The pointers are device memory.
struct ExpertRoom {
  double factor = 0;                   // rows of memory, as a multiple of the rows of even loads
  std::int64_t* stop = nullptr;        // raised in training steps: a stop counter (train/gradient_norm.h)
  std::int64_t* evaluation = nullptr;  // raised in evaluations
  double* needed = nullptr;            // the largest factor that a rank needed when it had too many rows, or 0

  ops::RowRoom rows(bool is_training) const {
    return {.factor = factor, .overflows = is_training ? stop : evaluation, .needed = needed};
  }
};

}  // namespace tessera::nn
