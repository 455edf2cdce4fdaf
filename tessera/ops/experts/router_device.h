// The router on a GPU: calls the kernels of experts_kernels.h with dense tensors that router.cpp has checked. The
// results have the shapes and types that router.h states. Internal to ops.
#pragma once
#include "tessera/ops/experts/router_types.h"

namespace tessera::ops::device {

void router_logits(const at::Tensor& x, const at::Tensor& w, at::Tensor& logits);
void router_dgrad(const at::Tensor& dlogits, const at::Tensor& w, at::Tensor& dx);
// dx: checked by router_gradient.cpp, as the type of sum.
void add_router_dgrad(const at::Tensor& dx, const at::Tensor& dlogits, const at::Tensor& w, at::Tensor& sum);
void router_wgrad(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dw);
void route(const at::Tensor& logits, const RouterOptions& options, Routing& routing);
void router_sums(const Routing& routing, const at::Tensor& counted, RouterSums& sums);
void route_backward(const Routing& routing, const RouterOptions& options, const RoutingGradients& gradients,
                    const at::Tensor& counted, at::Tensor& dlogits);

}  // namespace tessera::ops::device
