#include "tessera/ops/arithmetic.h"
#include "tessera/ops/exponential.h"
#include "tessera/ops/swiglu/swiglu_kernels.h"

namespace tessera::ops::cpu {
namespace {

template <typename A>
A sigmoid(A x) {
  return A{1} / (A{1} + exponential(-x));
}

template <typename T>
void forward_row(const T* __restrict gate, const T* __restrict up, T* __restrict out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto g = load(gate[i]);
    out[i] = round_to<T>(g * sigmoid(g) * load(up[i]));
  }
}

template <typename T>
struct SwigluBackwardRow {
  const T* __restrict gate;
  const T* __restrict up;
  const T* __restrict dout;
  T* __restrict dgate;
  T* __restrict dup;
  std::int64_t count;
};

template <typename T>
void backward_row(const SwigluBackwardRow<T>& row) {
  const T* __restrict gate = row.gate;
  const T* __restrict up = row.up;
  const T* __restrict dout = row.dout;
  T* __restrict dgate = row.dgate;
  T* __restrict dup = row.dup;
  for (std::int64_t i = 0; i < row.count; ++i) {
    using A = Accumulator<T>;
    const A g = load(gate[i]);
    const A s = sigmoid(g);
    const A d = load(dout[i]);
    dgate[i] = round_to<T>(d * load(up[i]) * s * (A{1} + g * (A{1} - s)));
    dup[i] = round_to<T>(d * g * s);
  }
}

}  // namespace

void swiglu_forward(const SwigluArguments& a) {
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t token = 0; token < a.tokens; ++token) {
      const T* gate = static_cast<const T*>(a.gate_up) + token * 2 * a.features;
      forward_row(gate, gate + a.features, static_cast<T*>(a.result) + token * a.features, a.features);
    }
  });
}

void swiglu_backward(const SwigluArguments& a) {
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t token = 0; token < a.tokens; ++token) {
      const T* gate = static_cast<const T*>(a.gate_up) + token * 2 * a.features;
      T* dgate = static_cast<T*>(a.result) + token * 2 * a.features;
      backward_row(SwigluBackwardRow<T>{.gate = gate,
                                        .up = gate + a.features,
                                        .dout = static_cast<const T*>(a.dout) + token * a.features,
                                        .dgate = dgate,
                                        .dup = dgate + a.features,
                                        .count = a.features});
      if (a.output != nullptr)
        forward_row(gate, gate + a.features, static_cast<T*>(a.output) + token * a.features, a.features);
    }
  });
}

}  // namespace tessera::ops::cpu
