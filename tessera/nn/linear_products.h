// The three products of a linear layer's weight, in the number format that the weight says. In another one than bf16
// what is multiplied is quantized first; sums and results are as those of bf16 products.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "tessera/nn/weight.h"
#include "tessera/ops/gemm/operand.h"

namespace tessera::nn {

enum class Role : std::uint8_t { input, gradient };  // of a matrix: of the layer's x, or of the gradient of its y

// A matrix as products take it: as it is for bf16, else its operands.
struct Factor {
  at::Tensor matrix;
  ops::Operands operands;
};

// Gives a weight of fp8 products its place among the context's delayed scales, if those are delayed. Before the first
// step, on every rank in the same order.
void add_scales(Context& context, Weight& weight);

// own: this rank's tokens of a matrix whose rows sequence parallelism has cut; without it, all of the matrix. `tokens`
// of the whole. Collective over tp.
Factor factor_of_tokens(Context& context, const Weight& weight, Role role, const at::Tensor& own, std::int64_t tokens,
                        schedule::Pass pass, ops::Sides sides);
// The same in two halves: it begins what other ranks bring, and the result, called once, waits for that.
std::function<Factor()> start_factor_of_tokens(Context& context, const Weight& weight, Role role, const at::Tensor& own,
                                               std::int64_t tokens, schedule::Pass pass, ops::Sides sides);
// part: this rank's columns of a matrix that has others on the other tp ranks. All of them share a scale.
Factor factor_of_columns(Context& context, const Weight& weight, Role role, const at::Tensor& part, schedule::Pass pass,
                         ops::Sides sides);

// The factor of swiglu(gate_up), as factor_of_columns gives it of an input.
Factor factor_of_swiglu(Context& context, const Weight& weight, const at::Tensor& gate_up, schedule::Pass pass,
                        ops::Sides sides);
// In backward, of dout, the gradient of swiglu(gate_up).
struct SwigluFactors {
  Factor gradient;  // of gate_up, for the weight whose product it is
  Factor out;       // swiglu(gate_up) by its columns, for the weight that reads it
};
// reader: null where out is not needed again.
SwigluFactors factors_of_swiglu_backward(Context& context, const Weight& weight, const Weight* reader,
                                         const at::Tensor& dout, const at::Tensor& gate_up);

// Whether forward quantizes an input by its columns too, in the same pass, and keeps that operand for wgrad in place of
// the input. tokens: which the input has before it is brought together over tp; an operand of all tokens would take
// more memory than this rank's own.
bool keeps_columns(const Context& context, const Weight& weight, Tokens tokens);
// What is kept of an input's operand by its columns: its data and its scales, which a CPU does not have.
struct KeptColumns {
  at::Tensor data, scales;
};
KeptColumns kept_columns(const Factor& input);
std::int64_t bytes_of_columns(const Factor& input);  // as a GPU stores them
// The factor of an input of `tokens` rows of which these columns were kept.
Factor factor_of_kept(const Context& context, const Weight& weight, const KeptColumns& columns, std::int64_t tokens);

// y = x w^T; needs x by its rows. Consumes the weight in the context's pass.
at::Tensor fprop(Context& context, const Weight& weight, const Factor& x);
// dx = dy w; needs dy by its rows.
at::Tensor dgrad(Context& context, const Weight& weight, const Factor& dy);
// dw = dy^T x; needs both by their columns. Produces the weight's gradient; nothing for a frozen weight.
void wgrad(Context& context, const Weight& weight, const Factor& dy, const Factor& x);

}  // namespace tessera::nn
