// SwiGLU of expert rows, multiplied by the routing weight of each row: out = silu(gate) * up * weight. The product is
// computed in the accumulator type and rounded once. gate_up: [room, 2 f], stacked as gate | up. weights: [room] in the
// accumulator type.
//
// The routing weight is applied here, so the outputs of experts are later combined by a plain sum.
#pragma once
#include "tessera/ops/router/selection.h"

namespace tessera::ops {

at::Tensor weighted_swiglu(const at::Tensor& gate_up, const at::Tensor& weights, const Selection& selection);

struct WeightedSwigluGradients {
  at::Tensor gate_up;  // [room, 2 f], rounded once
  at::Tensor weights;  // [room], accumulator type: for each row the sum of dout * silu(gate) * up
  at::Tensor out;      // weighted_swiglu's result; undefined unless `with_output` is true
};
WeightedSwigluGradients weighted_swiglu_backward(const at::Tensor& dout, const at::Tensor& gate_up,
                                                 const at::Tensor& weights, const Selection& selection,
                                                 bool with_output);

}  // namespace tessera::ops
