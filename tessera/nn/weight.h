// Gives modules access to a weight as a tensor, between its consume and release events, and to the gradient's staging.
#pragma once
#include <ATen/core/Tensor.h>

#include <exception>
#include <optional>

#include "tessera/nn/pass_state.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/grouped/grouped_formats.h"

namespace tessera::nn {

// The compute part of a parameter: the part that this rank's operations read. The part is a matrix [rows, cols], where
// rows or cols may be 0, or a vector [cols].
struct Weight {
  schedule::ParameterId id = schedule::kNoParameter;
  std::int64_t rows = 0, cols = 0;
  bool is_vector = false;
  quant::Format product = quant::Format::bf16;  // number format of the weight's products
  int input_scale = -1, gradient_scale = -1;    // indices into DelayedScales; -1: no delayed scale
};

// Consumes the weight in the constructor and releases it in the destructor. The constructor may wait for a gather. The
// destructor waits for compute if the weight was gathered on demand. The constructor and the destructor throw
// communication errors. The destructor does not release the weight while another exception propagates.
class ConsumedWeight {
 public:
  ConsumedWeight(const PassState& pass, const Weight& weight);
  ~ConsumedWeight() noexcept(false);
  ConsumedWeight(const ConsumedWeight&) = delete;
  ConsumedWeight& operator=(const ConsumedWeight&) = delete;

  // Returns a view of the weight's values, which is valid until the destructor runs. The tensor is undefined if the
  // products read the weight in its stored format, or its decoded values.
  const at::Tensor& tensor() const { return tensor_; }
  // Returns the weight in the format of its products, by rows or by columns. A weight that is stored in this format has
  // its operand by columns only in backward passes. The operand is valid until the destructor runs. The call may be
  // collective over tp, to reduce the amax of the logical weight.
  ops::Operand operand(ops::Sides side) const;
  // Returns the matrices of a stack for `kernel`, by rows or by columns, which are valid until the destructor runs.
  // Returns nullopt if the products quantize the weight's values.
  std::optional<ops::StackFactor> stored_stack(std::int64_t matrices, ops::Sides side,
                                               quant::ProductKernel kernel) const;

 private:
  // The numbers of the logical matrices that alpha of a decoded product depends on; undefined if the encoding is
  // without such numbers.
  at::Tensor whole(std::int64_t matrices) const;

  PassState pass_;
  const Weight& weight_;
  std::optional<quant::Quantized> encoded_, columnwise_;
  quant::Encoding encoding_;                     // encoding of encoded_ and decoded_
  int exceptions_ = std::uncaught_exceptions();  // number of exceptions in flight when this object was made
  at::Tensor tensor_;
  at::Tensor decoded_;      // the weight's decoded values
  float* whole_ = nullptr;  // runtime::WeightView::whole
};

// Calls write(gradient, accumulate), where `gradient` is the staging of the weight's gradient. Then produces the
// gradient. Does nothing for a frozen weight.
template <typename Write>
void produce_gradient(const PassState& pass, const Weight& weight, Write write);

bool is_trainable(const Context& context, const Weight& weight);
// Returns the staging as a tensor with the weight's shape and the buffer's type.
at::Tensor gradient_tensor(const Context& context, const runtime::GradientBuffer& buffer, const Weight& weight);

template <typename Write>
void produce_gradient(const PassState& pass, const Weight& weight, Write write) {
  if (!is_trainable(pass.context, weight)) return;
  const runtime::GradientBuffer buffer = pass.context.program.grad_buffer(weight.id, pass.id.microbatch);
  at::Tensor gradient = gradient_tensor(pass.context, buffer, weight);
  write(gradient, buffer.accumulate);
  pass.context.program.produce(weight.id, pass.id.microbatch);
}

}  // namespace tessera::nn
