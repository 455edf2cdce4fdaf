// A weight of a module as a tensor, while it is consumed; and the place of its gradient.
#pragma once
#include <ATen/core/Tensor.h>

#include <exception>
#include <optional>

#include "tessera/nn/context.h"
#include "tessera/ops/gemm/operand.h"

namespace tessera::nn {

// The compute part of a parameter: what every operation of this rank sees. A matrix [rows, cols], either may be 0, or
// a vector [cols].
struct Weight {
  schedule::ParameterId id = schedule::kNoParameter;
  std::int64_t rows = 0, cols = 0;
  bool is_vector = false;
  quant::Format product = quant::Format::bf16;  // number format of its products
  int input_scale = -1, gradient_scale = -1;    // of delayed scaling: numbers of a DelayedScales; -1: none
};

// Consumes in the constructor, releases in the destructor; the tensor is a view that is valid between the two.
// Consuming may wait for a gather; releasing what was gathered on demand waits for compute. Both throw errors of
// communication; while an error is under way already, nothing is released any more.
class ConsumedWeight {
 public:
  ConsumedWeight(Context& context, const Weight& weight, schedule::Pass pass);
  ~ConsumedWeight() noexcept(false);
  ConsumedWeight(const ConsumedWeight&) = delete;
  ConsumedWeight& operator=(const ConsumedWeight&) = delete;

  // Undefined for a weight that its products read as it is stored.
  const at::Tensor& tensor() const { return tensor_; }
  // The weight in the format of its products, by its rows or by its columns. Valid as tensor() is. Over tp it may take
  // the amax of the logical weight together.
  ops::Operand operand(ops::Sides side) const;

 private:
  Context& context_;
  const Weight& weight_;
  schedule::Pass pass_;
  std::optional<quant::Quantized> encoded_;
  quant::Encoding encoding_;                     // of encoded_
  int exceptions_ = std::uncaught_exceptions();  // under way when this was made
  at::Tensor tensor_;
};

// Calls write(gradient, accumulate) with the staging of the weight's gradient, then produces it. Nothing for frozen
// weights.
template <typename Write>
void produce_gradient(Context& context, const Weight& weight, Write write);

bool is_trainable(const Context& context, const Weight& weight);
// The staging as a tensor of the weight's shape, in the buffer's type.
at::Tensor gradient_tensor(Context& context, const runtime::GradientBuffer& buffer, const Weight& weight);

template <typename Write>
void produce_gradient(Context& context, const Weight& weight, Write write) {
  if (!is_trainable(context, weight)) return;
  const runtime::GradientBuffer buffer = context.program.grad_buffer(weight.id);
  at::Tensor gradient = gradient_tensor(context, buffer, weight);
  write(gradient, buffer.accumulate);
  context.program.produce(weight.id);
}

}  // namespace tessera::nn
