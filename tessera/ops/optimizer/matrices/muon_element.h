// The stages of Muon for one element, shared by all devices. Internal to ops.
#pragma once
#include <cmath>

#include "tessera/base/host_device.h"
#include "tessera/ops/optimizer/matrices/muon.h"

namespace tessera::ops {

template <typename A>
struct MuonDirection {
  A momentum, direction;
};

// The directions of single elements.
template <typename A>
struct MuonFactors {
  A momentum, momentum_rest, gradient_scale;
  bool nesterov;

  TESSERA_HOST_DEVICE MuonFactors(const MuonScalars& s, double scale)
      : momentum(static_cast<A>(s.momentum)),
        momentum_rest(static_cast<A>(s.momentum_rest)),
        gradient_scale(static_cast<A>(scale)),
        nesterov(s.nesterov != 0) {}

  TESSERA_HOST_DEVICE MuonDirection<A> operator()(A old, A gradient) const {
    const A g = gradient * gradient_scale;
    const A m = std::fma(momentum_rest, g - old, old);
    return {.momentum = m, .direction = nesterov ? std::fma(momentum, m - g, g) : m};
  }
};

// Returns the new master. `rate` is the rate times UpdateShard::factor.
template <typename A>
TESSERA_HOST_DEVICE inline A muon_master(A master, A x, A decay, A rate) {
  return master * decay - rate * x;
}

}  // namespace tessera::ops
