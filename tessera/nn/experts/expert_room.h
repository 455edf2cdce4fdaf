// The memory for rows of experts on a GPU. The memory has a fixed size, because the host does not know the number of
// rows.
#pragma once
#include "tessera/ops/router/selection.h"

namespace tessera::nn {

// If a rank has more rows than the memory holds, the operators drop rows and increment a counter. The results of the
// step or evaluation are then invalid, and the step or evaluation is repeated with more memory. The pointers point to
// device memory.
struct ExpertRoom {
  double factor = 0;                   // allocated rows, divided by the number of rows of even loads
  std::int64_t* stop = nullptr;        // counter for training steps: a stop counter (train/update/gradient_norm.h)
  std::int64_t* evaluation = nullptr;  // counter for evaluations
  double* needed = nullptr;  // the largest factor that this rank needed when rows were dropped; 0: no rows were dropped

  ops::RowRoom rows(bool is_training) const {
    return {.factor = factor, .overflows = is_training ? stop : evaluation, .needed = needed};
  }
};

}  // namespace tessera::nn
