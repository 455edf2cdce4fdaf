// The update of one element, shared by all devices. Internal to ops.
#pragma once
#include <cmath>

#include "tessera/base/host_device.h"
#include "tessera/ops/optimizer/adamw.h"

namespace tessera::ops {

template <typename A>
struct TypedScalars {
  A decay, beta1_rest, beta2, beta2_rest, step_size, root_correction2, eps, gradient_scale;

  TESSERA_HOST_DEVICE TypedScalars(const StepScalars& s, double scale)
      : decay(static_cast<A>(s.decay)),
        beta1_rest(static_cast<A>(s.beta1_rest)),
        beta2(static_cast<A>(s.beta2)),
        beta2_rest(static_cast<A>(s.beta2_rest)),
        step_size(static_cast<A>(s.step_size)),
        root_correction2(static_cast<A>(s.root_correction2)),
        eps(static_cast<A>(s.eps)),
        gradient_scale(static_cast<A>(scale)) {}
};

template <typename A>
struct AdamWElement {
  A master, exp_avg, exp_avg_sq;
};
template <typename A>
TESSERA_HOST_DEVICE inline AdamWElement<A> updated(const TypedScalars<A>& s, const AdamWElement<A>& e, A gradient) {
  const A g = gradient * s.gradient_scale;
  const A m = std::fma(s.beta1_rest, g - e.exp_avg, e.exp_avg);
  const A v = std::fma(s.beta2_rest * g, g, s.beta2 * e.exp_avg_sq);
  const A denominator = std::sqrt(v) / s.root_correction2 + s.eps;
  return {.master = e.master * s.decay - s.step_size * (m / denominator), .exp_avg = m, .exp_avg_sq = v};
}

}  // namespace tessera::ops
