// SwiGLU of expert rows, times the routing weight of each row: out = silu(gate) * up * weight, computed in the
// accumulator type and rounded once. gate_up: [room, 2 f] as gate | up. weights: [room], accumulator type.
//
// The weight is applied here, so that the outputs of experts are combined by a plain sum.
#pragma once
#include "tessera/ops/experts/selection.h"

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
