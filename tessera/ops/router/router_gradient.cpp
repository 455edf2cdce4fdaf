#include "tessera/ops/router/router_gradient.h"

#include "tessera/ops/router/router.h"
#include "tessera/ops/router/router_device.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

at::Tensor add_router_dgrad(const at::Tensor& dx, const at::Tensor& dlogits, const at::Tensor& w) {
  const at::Tensor gradient = dense(dlogits, 2, "router dlogits"), weight = dense(w, 2, "router w");
  const at::Tensor other =
      dense_like(dx, {gradient.size(0), weight.size(1)}, dx.scalar_type(), "gradient beside the router");
  if (on_cuda(other)) {
    at::Tensor sum = make(other.sizes(), other.scalar_type(), other.device());
    device::add_router_dgrad(other, gradient, weight, sum);
    return sum;
  }
  const at::Tensor own = router_dgrad(gradient, weight);
  if (is_dry(own)) return make(other.sizes(), other.scalar_type(), other.device());
  at::Tensor sum = other.to(own.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  add_to(sum, own);
  return rounded_to(sum, other.scalar_type());
}

}  // namespace tessera::ops
