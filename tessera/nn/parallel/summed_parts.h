// A matrix that may be given as the sum of matrices (parts). A consumer that adds the parts while it reads them, such
// as a norm, saves a pass over memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "tessera/nn/pass_state.h"

namespace tessera::nn {

// The parts are added in their order in the accumulator type, and the sum is rounded once. For autograd, each part is
// an input of the consumer, and the gradient of the sum is the gradient of each part.
class SummedParts {
 public:
  SummedParts() = default;
  SummedParts(at::Tensor matrix) : parts_{std::move(matrix)} {}  // NOLINT(google-explicit-constructor)
  // parts: at least one matrix; all have the same shape and type.
  explicit SummedParts(std::vector<at::Tensor> parts) : parts_(std::move(parts)) {}

  at::TensorList parts() const { return parts_; }

 private:
  std::vector<at::Tensor> parts_;
};

// Returns the sum as one matrix, with autograd. Enqueues a pass over memory if there are several parts.
at::Tensor sum_of(const PassState& pass, const SummedParts& matrix);

}  // namespace tessera::nn
