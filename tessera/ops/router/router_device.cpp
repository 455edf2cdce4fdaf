#include "tessera/ops/router/router_device.h"

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::device {
namespace {

const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

void require_few_experts(std::int64_t experts) {
  TESSERA_CHECK(experts <= kMaxDeviceExperts, "router: {} experts, expected at most {} on a GPU", experts,
                kMaxDeviceExperts);
}

// Calls a product with its scratch memory.
void run(void (*product)(const RouterProductArguments&, base::CudaStream), const at::Tensor& where,
         RouterProductArguments arguments) {
  const std::int64_t bytes = cuda_only<cuda::router_scratch>(arguments);
  at::Tensor scratch = make({bytes}, at::kByte, where.device());
  arguments.scratch = scratch.mutable_data_ptr();
  product(arguments, stream_of(where));
}

}  // namespace

void router_logits(const at::Tensor& x, const at::Tensor& w, at::Tensor& logits) {
  run(cuda_only<cuda::router_logits>, x,
      {.type = to_dtype(x.scalar_type()),
       .tokens = x.size(0),
       .experts = w.size(0),
       .hidden = x.size(1),
       .x = x.const_data_ptr(),
       .w = w.const_data_ptr(),
       .result = logits.mutable_data_ptr()});
}

void router_dgrad(const at::Tensor& dlogits, const at::Tensor& w, at::Tensor& dx) {
  run(cuda_only<cuda::router_dgrad>, dlogits,
      {.type = to_dtype(dlogits.scalar_type()),
       .tokens = dlogits.size(0),
       .experts = dlogits.size(1),
       .hidden = w.size(1),
       .w = w.const_data_ptr(),
       .dlogits = dlogits.const_data_ptr(),
       .result = dx.mutable_data_ptr()});
}

void add_router_dgrad(const at::Tensor& dx, const at::Tensor& dlogits, const at::Tensor& w, at::Tensor& sum) {
  TESSERA_CHECK(dlogits.scalar_type() == accumulator_type(dx.scalar_type()) &&
                    w.scalar_type() == dlogits.scalar_type() && w.size(0) == dlogits.size(1),
                "router dgrad: dlogits [{}, {}] of {}, w [{}, {}] of {} and a gradient of {} do not fit",
                dlogits.size(0), dlogits.size(1), c10::toString(dlogits.scalar_type()), w.size(0), w.size(1),
                c10::toString(w.scalar_type()), c10::toString(dx.scalar_type()));
  run(cuda_only<cuda::router_dgrad>, dx,
      {.type = to_dtype(dx.scalar_type()),
       .tokens = dlogits.size(0),
       .experts = dlogits.size(1),
       .hidden = w.size(1),
       .w = w.const_data_ptr(),
       .dlogits = dlogits.const_data_ptr(),
       .addend = dx.const_data_ptr(),
       .result = sum.mutable_data_ptr()});
}

void router_wgrad(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dw) {
  const std::int64_t chunks = (x.size(0) + kRouterGradientChunk - 1) / kRouterGradientChunk;
  at::Tensor parts = make({chunks, dlogits.size(1), x.size(1)}, dlogits.scalar_type(), x.device());
  run(cuda_only<cuda::router_wgrad>, x,
      {.type = to_dtype(x.scalar_type()),
       .tokens = x.size(0),
       .experts = dlogits.size(1),
       .hidden = x.size(1),
       .x = x.const_data_ptr(),
       .dlogits = dlogits.const_data_ptr(),
       .parts = parts.mutable_data_ptr(),
       .result = dw.mutable_data_ptr()});
}

void route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias, Routing& routing) {
  require_few_experts(logits.size(1));
  cuda_only<cuda::route>({.type = to_dtype(logits.scalar_type()),
                          .tokens = logits.size(0),
                          .experts = logits.size(1),
                          .options = options,
                          .logits = logits.const_data_ptr(),
                          .bias = data_or_null(bias),
                          .probabilities = routing.probabilities.mutable_data_ptr(),
                          .logsumexp = routing.logsumexp.mutable_data_ptr(),
                          .choices = routing.experts.mutable_data_ptr<std::int32_t>(),
                          .weights = routing.weights.mutable_data_ptr()},
                         stream_of(logits));
}

void router_sums(const Routing& routing, const at::Tensor& counted, RouterSums& sums) {
  const at::Tensor& p = routing.probabilities;
  const std::int64_t tokens = p.size(0), experts = p.size(1), chunks = (tokens + kRouterChunk - 1) / kRouterChunk;
  at::Tensor chunk_sums = make({chunks, experts + 1}, p.scalar_type(), p.device()),
             chunk_counts = make({chunks, experts}, at::kInt, p.device());
  cuda_only<cuda::router_sums>({.type = to_dtype(p.scalar_type()),
                                .tokens = tokens,
                                .experts = experts,
                                .k = routing.experts.size(1),
                                .probabilities = p.const_data_ptr(),
                                .logsumexp = routing.logsumexp.const_data_ptr(),
                                .choices = routing.experts.const_data_ptr<std::int32_t>(),
                                .counted = counted.const_data_ptr<bool>(),
                                .chunk_sums = chunk_sums.mutable_data_ptr(),
                                .chunk_counts = chunk_counts.mutable_data_ptr<std::int32_t>(),
                                .counts = sums.counts.mutable_data_ptr<std::int64_t>(),
                                .sums = sums.probabilities.mutable_data_ptr(),
                                .squares = sums.logsumexp_squares.mutable_data_ptr()},
                               stream_of(p));
}

void route_backward(const Routing& routing, const RouterOptions& options, const RoutingGradients& gradients,
                    const at::Tensor& counted, at::Tensor& dlogits) {
  const at::Tensor& p = routing.probabilities;
  require_few_experts(p.size(1));
  cuda_only<cuda::route_backward>({.type = to_dtype(p.scalar_type()),
                                   .tokens = p.size(0),
                                   .experts = p.size(1),
                                   .options = options,
                                   .probabilities = p.const_data_ptr(),
                                   .logsumexp = routing.logsumexp.const_data_ptr(),
                                   .choices = routing.experts.const_data_ptr<std::int32_t>(),
                                   .weights = routing.weights.const_data_ptr(),
                                   .counted = counted.const_data_ptr<bool>(),
                                   .dweights = data_or_null(gradients.weights),
                                   .dprobabilities = data_or_null(gradients.probabilities),
                                   .dsquares = data_or_null(gradients.logsumexp_squares),
                                   .dlogits = dlogits.mutable_data_ptr()},
                                  stream_of(p));
}

}  // namespace tessera::ops::device
