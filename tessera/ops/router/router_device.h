// The router on a GPU. These functions call the kernels of experts_kernels.h. The tensors are dense, and router.cpp has
// checked them. The results have the shapes and types of router.h. Internal to ops.
#pragma once
#include "tessera/ops/router/router_types.h"

namespace tessera::ops::device {

void router_logits(const at::Tensor& x, const at::Tensor& w, at::Tensor& logits);
void router_dgrad(const at::Tensor& dlogits, const at::Tensor& w, at::Tensor& dx);
// router_gradient.cpp has checked `dx`. `sum` has the type of `dx`.
void add_router_dgrad(const at::Tensor& dx, const at::Tensor& dlogits, const at::Tensor& w, at::Tensor& sum);
void router_wgrad(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dw);
// bias: [experts] or undefined.
void route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias, Routing& routing);
void router_sums(const Routing& routing, const at::Tensor& counted, RouterSums& sums);
void route_backward(const Routing& routing, const RouterOptions& options, const RoutingGradients& gradients,
                    const at::Tensor& counted, at::Tensor& dlogits);

}  // namespace tessera::ops::device
