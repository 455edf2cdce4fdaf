#include "tessera/ops/router/router.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/exponential.h"
#include "tessera/ops/router/choice.h"
#include "tessera/ops/router/router_chunks.h"
#include "tessera/ops/router/router_device.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/work.h"

namespace tessera::ops {
namespace {

template <typename T>
const T* data(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <typename T>
T* data(at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

Work router_work(const char* name, std::int64_t tokens, std::int64_t experts, std::int64_t hidden, std::int64_t bytes) {
  Work work = memory_work(name, bytes);
  work.flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(experts) * static_cast<double>(hidden);
  return work;
}

// Writes the softmax of a row and returns its logsumexp.
template <typename A>
A softmax(const A* logits, A* probabilities, std::int64_t count) {
  A most = logits[0], sum = 0;
  for (std::int64_t e = 1; e < count; ++e) most = logits[e] > most ? logits[e] : most;
  for (std::int64_t e = 0; e < count; ++e) sum += probabilities[e] = exponential(logits[e] - most);
  for (std::int64_t e = 0; e < count; ++e) probabilities[e] /= sum;
  return most + std::log(sum);
}

// The gradient of one token's logits. `dp` has the gradients of its probabilities that do not come from its weights.
template <typename A>
void backward_row(const A* p, std::int64_t count, const std::int32_t* experts, const A* weights, const A* dweights,
                  const RouterOptions& options, A dlogsumexp, std::vector<A>& dp, A* dlogits) {
  if (dweights != nullptr) {
    A mean = 0, sum = 1;
    if (options.normalizes) {
      sum = static_cast<A>(options.least_sum());
      for (std::int64_t slot = 0; slot < options.k; ++slot) {
        mean += dweights[slot] * weights[slot];
        sum += p[experts[slot]];
      }
    }
    for (std::int64_t slot = 0; slot < options.k; ++slot)
      dp[static_cast<std::size_t>(experts[slot])] += (static_cast<A>(options.scale) * dweights[slot] - mean) / sum;
  }
  if (options.score == RouterScore::sigmoid) {
    for (std::int64_t e = 0; e < count; ++e) dlogits[e] = dp[static_cast<std::size_t>(e)] * p[e] * (A{1} - p[e]);
    return;
  }
  A inner = 0;
  for (std::int64_t e = 0; e < count; ++e) inner += p[e] * dp[static_cast<std::size_t>(e)];
  for (std::int64_t e = 0; e < count; ++e)
    dlogits[e] = p[e] * (dp[static_cast<std::size_t>(e)] - inner) + dlogsumexp * p[e];
}

// Returns the gradients as row-major tensors. Throws Error if a shape or a type differs from the routing's.
RoutingGradients dense_gradients(const Routing& routing, const RouterOptions& options,
                                 const RoutingGradients& gradients) {
  const at::Tensor& p = routing.probabilities;
  const at::ScalarType type = p.scalar_type();
  const std::int64_t per_token[] = {p.size(0), options.k}, per_expert[] = {p.size(1)}, one[] = {1};
  TESSERA_CHECK(routing.experts.sizes() == per_token, "route_backward: {} choices of a token, expected {}",
                routing.experts.size(1), options.k);
  const auto dense_or_undefined = [&](const at::Tensor& gradient, at::IntArrayRef shape, const char* what) {
    return gradient.defined() ? dense_like(gradient, shape, type, what) : gradient;
  };
  return {.weights = dense_or_undefined(gradients.weights, per_token, "gradient of routing weights"),
          .probabilities = dense_or_undefined(gradients.probabilities, per_expert, "gradient of probabilities"),
          .logsumexp_squares = dense_or_undefined(gradients.logsumexp_squares, one, "gradient of squares")};
}

}  // namespace

at::Tensor router_logits(const at::Tensor& x, const at::Tensor& w) {
  const at::Tensor rows = dense(x, 2, "router x");
  const std::int64_t tokens = rows.size(0), hidden = rows.size(1);
  const at::Tensor weight =
      dense_like(w, {dense(w, 2, "router w").size(0), hidden}, accumulator_type(rows.scalar_type()), "router w");
  const std::int64_t experts = weight.size(0);
  at::Tensor logits = make({tokens, experts}, weight.scalar_type(), rows.device());
  if (is_dry(rows)) {
    report(router_work("router", tokens, experts, hidden, bytes_of({rows, weight, logits})));
    return logits;
  }
  if (on_cuda(rows)) {
    device::router_logits(rows, weight, logits);
    return logits;
  }
  dispatch_floating(to_dtype(rows.scalar_type()), [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    for (std::int64_t token = 0; token < tokens; ++token)
      for (std::int64_t e = 0; e < experts; ++e) {
        const T* row = data<T>(rows) + token * hidden;
        const A* of_expert = data<A>(weight) + e * hidden;
        data<A>(logits)[token * experts + e] =
            lane_sum<A>(hidden, [&](std::int64_t i) { return load(row[i]) * of_expert[i]; });
      }
  });
  return logits;
}

at::Tensor router_dgrad(const at::Tensor& dlogits, const at::Tensor& w) {
  const at::Tensor gradient = dense(dlogits, 2, "router dlogits");
  const std::int64_t tokens = gradient.size(0), experts = gradient.size(1);
  const at::Tensor weight =
      dense_like(w, {experts, dense(w, 2, "router w").size(1)}, gradient.scalar_type(), "router w");
  const std::int64_t hidden = weight.size(1);
  at::Tensor dx = make({tokens, hidden}, gradient.scalar_type(), gradient.device());
  if (is_dry(gradient)) {
    report(router_work("router dgrad", tokens, experts, hidden, bytes_of({gradient, weight, dx})));
    return dx;
  }
  if (on_cuda(gradient)) {
    device::router_dgrad(gradient, weight, dx);
    return dx;
  }
  dx.zero_();
  dispatch_accumulator(to_dtype(gradient.scalar_type()), [&](auto element) {
    using A = decltype(element);
    for (std::int64_t token = 0; token < tokens; ++token)
      for (std::int64_t e = 0; e < experts; ++e) {
        const A factor = data<A>(gradient)[token * experts + e];
        const A* from = data<A>(weight) + e * hidden;
        A* to = data<A>(dx) + token * hidden;
        for (std::int64_t i = 0; i < hidden; ++i) to[i] += factor * from[i];
      }
  });
  return dx;
}

void router_wgrad(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dw, bool accumulate) {
  const at::Tensor gradient = dense(dlogits, 2, "router dlogits"), rows = dense(x, 2, "router x");
  const std::int64_t tokens = rows.size(0), hidden = rows.size(1), experts = gradient.size(1);
  TESSERA_CHECK(gradient.size(0) == tokens, "router_wgrad: dlogits has {} tokens, x {}", gradient.size(0), tokens);
  TESSERA_CHECK(gradient.scalar_type() == accumulator_type(rows.scalar_type()),
                "router_wgrad: dlogits of type {} for x of type {}, expected the accumulator type",
                c10::toString(gradient.scalar_type()), c10::toString(rows.scalar_type()));
  require_writable(dw, {experts, hidden}, gradient.scalar_type(), "router dw");
  if (is_dry(rows)) return report(router_work("router wgrad", tokens, experts, hidden, bytes_of({gradient, rows, dw})));
  at::Tensor sums = make({experts, hidden}, gradient.scalar_type(), rows.device());
  if (on_cuda(rows)) {
    device::router_wgrad(gradient, rows, accumulate ? sums : dw);
    if (accumulate) add_to(dw, sums);
    return;
  }
  sums.zero_();
  dispatch_floating(to_dtype(rows.scalar_type()), [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    std::vector<A> part(static_cast<std::size_t>(experts * hidden));
    for (std::int64_t begin = 0; begin < tokens; begin += kRouterGradientChunk) {
      std::fill(part.begin(), part.end(), A{0});
      for (std::int64_t token = begin; token < std::min(begin + kRouterGradientChunk, tokens); ++token)
        for (std::int64_t e = 0; e < experts; ++e) {
          const A factor = data<A>(gradient)[token * experts + e];
          const T* from = data<T>(rows) + token * hidden;
          A* to = part.data() + e * hidden;
          for (std::int64_t i = 0; i < hidden; ++i) to[i] += factor * load(from[i]);
        }
      for (std::size_t i = 0; i < part.size(); ++i) data<A>(sums)[i] += part[i];
    }
  });
  if (accumulate)
    add_to(dw, sums);
  else
    dw.copy_(sums);
}

Routing route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias) {
  const at::Tensor input = dense(logits, 2, "logits of experts");
  const std::int64_t tokens = input.size(0), experts = input.size(1);
  check_rule(options, experts);
  const at::Tensor biases = bias.defined() ? dense_like(bias, {experts}, input.scalar_type(), "router bias") : bias;
  Routing routing{.probabilities = make(input.sizes(), input.scalar_type(), input.device()),
                  .logsumexp = make({tokens}, input.scalar_type(), input.device()),
                  .experts = make({tokens, options.k}, at::kInt, input.device()),
                  .weights = make({tokens, options.k}, input.scalar_type(), input.device())};
  if (is_dry(input)) {
    report(memory_work("route", bytes_of({input, routing.probabilities, routing.experts, routing.weights})));
    return routing;
  }
  if (on_cuda(input)) {
    device::route(input, options, biases, routing);
    return routing;
  }
  dispatch_accumulator(to_dtype(input.scalar_type()), [&](auto element) {
    using A = decltype(element);
    const A* bias_of = biases.defined() ? data<A>(biases) : nullptr;
    for (std::int64_t token = 0; token < tokens; ++token) {
      A* probabilities = data<A>(routing.probabilities) + token * experts;
      data<A>(routing.logsumexp)[token] = options.score == RouterScore::softmax
                                              ? softmax(data<A>(input) + token * experts, probabilities, experts)
                                              : sigmoids(data<A>(input) + token * experts, probabilities, experts);
      choose(probabilities, bias_of, experts, options, data<std::int32_t>(routing.experts) + token * options.k,
             data<A>(routing.weights) + token * options.k);
    }
  });
  return routing;
}

RouterSums router_sums(const Routing& routing, const at::Tensor& counted) {
  const std::int64_t tokens = routing.probabilities.size(0), experts = routing.probabilities.size(1);
  const std::int64_t k = routing.experts.size(1);
  const at::ScalarType type = routing.probabilities.scalar_type();
  const at::Device device = routing.probabilities.device();
  RouterSums sums{.counts = make({experts}, at::kLong, device),
                  .probabilities = make({experts}, type, device),
                  .logsumexp_squares = make({1}, type, device)};
  if (is_dry(routing.probabilities)) {
    report(memory_work("router sums", bytes_of({routing.probabilities, routing.experts, routing.logsumexp})));
    return sums;
  }
  const at::Tensor mask = dense_like(counted, {tokens}, at::kBool, "counted tokens");
  if (on_cuda(mask)) {
    device::router_sums(routing, mask, sums);
    return sums;
  }
  sums.counts.zero_();
  sums.probabilities.zero_();
  sums.logsumexp_squares.zero_();
  dispatch_accumulator(to_dtype(type), [&](auto element) {
    using A = decltype(element);
    A* totals = data<A>(sums.probabilities);
    for (std::int64_t begin = 0; begin < tokens; begin += kRouterChunk) {
      std::vector<A> chunk(static_cast<std::size_t>(experts), A{0});
      A squares = 0;
      for (std::int64_t token = begin; token < std::min(tokens, begin + kRouterChunk); ++token) {
        if (!data<bool>(mask)[token]) continue;
        for (std::int64_t e = 0; e < experts; ++e)
          chunk[static_cast<std::size_t>(e)] += data<A>(routing.probabilities)[token * experts + e];
        const A logsumexp = data<A>(routing.logsumexp)[token];
        squares += logsumexp * logsumexp;
        for (std::int64_t slot = 0; slot < k; ++slot)
          ++data<std::int64_t>(sums.counts)[data<std::int32_t>(routing.experts)[token * k + slot]];
      }
      for (std::int64_t e = 0; e < experts; ++e) totals[e] += chunk[static_cast<std::size_t>(e)];
      data<A>(sums.logsumexp_squares)[0] += squares;
    }
  });
  return sums;
}

at::Tensor route_backward(const Routing& routing, const RouterOptions& options, const RoutingGradients& of_results,
                          const at::Tensor& counted) {
  const at::Tensor& p = routing.probabilities;
  const std::int64_t tokens = p.size(0), experts = p.size(1), k = options.k;
  const RoutingGradients gradients = dense_gradients(routing, options, of_results);
  at::Tensor dlogits = make(p.sizes(), p.scalar_type(), p.device());
  if (is_dry(p)) {
    report(memory_work("route backward", bytes_of({p, dlogits, routing.weights, routing.experts})));
    return dlogits;
  }
  const at::Tensor mask = dense_like(counted, {tokens}, at::kBool, "counted tokens");
  if (on_cuda(mask)) {
    device::route_backward(routing, options, gradients, mask, dlogits);
    return dlogits;
  }
  dispatch_accumulator(to_dtype(p.scalar_type()), [&](auto element) {
    using A = decltype(element);
    const A* dweights = gradients.weights.defined() ? data<A>(gradients.weights) : nullptr;
    const A dsquares = gradients.logsumexp_squares.defined() ? data<A>(gradients.logsumexp_squares)[0] : A{0};
    for (std::int64_t token = 0; token < tokens; ++token) {
      const bool counts = data<bool>(mask)[token];
      std::vector<A> dp(static_cast<std::size_t>(experts), A{0});
      if (counts && gradients.probabilities.defined())
        std::copy_n(data<A>(gradients.probabilities), experts, dp.begin());
      const A dlogsumexp = counts ? 2 * data<A>(routing.logsumexp)[token] * dsquares : A{0};
      backward_row(data<A>(p) + token * experts, experts, data<std::int32_t>(routing.experts) + token * k,
                   data<A>(routing.weights) + token * k, dweights == nullptr ? nullptr : dweights + token * k, options,
                   dlogsumexp, dp, data<A>(dlogits) + token * experts);
    }
  });
  return dlogits;
}

}  // namespace tessera::ops
