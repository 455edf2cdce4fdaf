#include "tessera/ops/experts/weighted_swiglu.h"

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/exponential.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/work.h"

namespace tessera::ops {
namespace {

template <typename A>
A sigmoid(A x) {
  return A{1} / (A{1} + exponential(-x));
}

struct Rows {
  at::Tensor gate_up, weights;
  std::int64_t features = 0;
};

Rows checked(const at::Tensor& gate_up, const at::Tensor& weights, const Selection& selection) {
  Rows rows{.gate_up = dense(gate_up, 2, "weighted_swiglu gate_up")};
  TESSERA_CHECK(rows.gate_up.size(0) == selection.room && rows.gate_up.size(1) % 2 == 0,
                "weighted_swiglu: gate_up [{}, {}], expected {} rows and an even number of columns",
                rows.gate_up.size(0), rows.gate_up.size(1), selection.room);
  rows.features = rows.gate_up.size(1) / 2;
  rows.weights = dense_like(weights, {selection.room}, accumulator_type(gate_up.scalar_type()), "routing weights");
  return rows;
}

template <typename T>
void forward_row(const T* gate, const T* up, Accumulator<T> weight, T* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto g = load(gate[i]);
    out[i] = round_to<T>(g * sigmoid(g) * load(up[i]) * weight);
  }
}

// Returns the gradient of the row's weight.
template <typename T>
Accumulator<T> backward_row(const T* gate, const T* up, const T* dout, Accumulator<T> weight, T* dgate, T* dup,
                            std::int64_t count) {
  using A = Accumulator<T>;
  for (std::int64_t i = 0; i < count; ++i) {
    const A g = load(gate[i]), s = sigmoid(g), d = load(dout[i]) * weight;
    dgate[i] = round_to<T>(d * load(up[i]) * s * (A{1} + g * (A{1} - s)));
    dup[i] = round_to<T>(d * g * s);
  }
  return lane_sum<A>(count, [&](std::int64_t i) {
    const A g = load(gate[i]);
    return load(dout[i]) * (g * sigmoid(g) * load(up[i]));
  });
}

template <typename T>
T* row_of(at::Tensor& tensor, std::int64_t row) {
  return static_cast<T*>(tensor.mutable_data_ptr()) + row * tensor.size(1);
}
template <typename T>
const T* row_of(const at::Tensor& tensor, std::int64_t row) {
  return static_cast<const T*>(tensor.const_data_ptr()) + row * tensor.size(1);
}

WeightedSwigluArguments arguments_of(const Rows& rows, const Selection& selection, at::Tensor& result) {
  return {.type = to_dtype(rows.gate_up.scalar_type()),
          .room = selection.local == 0 ? 0 : selection.room,
          .features = rows.features,
          .rows = selection.ends.const_data_ptr<std::int32_t>() + selection.local - 1,
          .gate_up = rows.gate_up.const_data_ptr(),
          .weights = rows.weights.const_data_ptr(),
          .result = result.mutable_data_ptr()};
}

std::int64_t expected_bytes(const Selection& selection, const at::Tensor& like, std::int64_t widths) {
  return selection.expected * widths * static_cast<std::int64_t>(like.element_size());
}

}  // namespace

at::Tensor weighted_swiglu(const at::Tensor& gate_up, const at::Tensor& weights, const Selection& selection) {
  const Rows rows = checked(gate_up, weights, selection);
  at::Tensor out = make({selection.room, rows.features}, gate_up.scalar_type(), gate_up.device());
  if (is_dry(gate_up)) {
    report(memory_work("experts swiglu", expected_bytes(selection, gate_up, 3 * rows.features)));
    return out;
  }
  if (on_cuda(gate_up)) {
    cuda_only<cuda::weighted_swiglu>(arguments_of(rows, selection, out), stream_of(gate_up));
    return out;
  }
  dispatch_floating(to_dtype(gate_up.scalar_type()), [&](auto element) {
    using T = decltype(element);
    const auto* weight = static_cast<const Accumulator<T>*>(rows.weights.const_data_ptr());
    for (std::int64_t row = 0; row < selection.rows(); ++row) {
      const T* gate = row_of<T>(rows.gate_up, row);
      forward_row(gate, gate + rows.features, weight[row], row_of<T>(out, row), rows.features);
    }
  });
  return out;
}

WeightedSwigluGradients weighted_swiglu_backward(const at::Tensor& dout, const at::Tensor& gate_up,
                                                 const at::Tensor& weights, const Selection& selection,
                                                 bool with_output) {
  const Rows rows = checked(gate_up, weights, selection);
  const std::int64_t features = rows.features;
  const at::Tensor gradient = dense_like(dout, {selection.room, features}, gate_up.scalar_type(), "experts dout");
  WeightedSwigluGradients result{.gate_up = make(rows.gate_up.sizes(), gate_up.scalar_type(), gate_up.device()),
                                 .weights = make({selection.room}, rows.weights.scalar_type(), gate_up.device())};
  if (with_output) result.out = make(gradient.sizes(), gate_up.scalar_type(), gate_up.device());
  if (is_dry(gate_up)) {
    report(
        memory_work("experts swiglu backward", expected_bytes(selection, gate_up, (with_output ? 6 : 5) * features)));
    return result;
  }
  if (on_cuda(gate_up)) {
    WeightedSwigluArguments arguments = arguments_of(rows, selection, result.gate_up);
    arguments.dout = gradient.const_data_ptr();
    arguments.dweights = result.weights.mutable_data_ptr();
    arguments.output = with_output ? result.out.mutable_data_ptr() : nullptr;
    cuda_only<cuda::weighted_swiglu_backward>(arguments, stream_of(gate_up));
    return result;
  }
  dispatch_floating(to_dtype(gate_up.scalar_type()), [&](auto element) {
    using T = decltype(element);
    const auto* weight = static_cast<const Accumulator<T>*>(rows.weights.const_data_ptr());
    auto* dweight = static_cast<Accumulator<T>*>(result.weights.mutable_data_ptr());
    for (std::int64_t row = 0; row < selection.rows(); ++row) {
      const T* gate = row_of<T>(rows.gate_up, row);
      T* dgate = row_of<T>(result.gate_up, row);
      dweight[row] =
          backward_row(gate, gate + features, row_of<T>(gradient, row), weight[row], dgate, dgate + features, features);
      if (with_output) forward_row(gate, gate + features, weight[row], row_of<T>(result.out, row), features);
    }
  });
  return result;
}

}  // namespace tessera::ops
