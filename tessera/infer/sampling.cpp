#include "tessera/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::infer {
namespace {

// The finalizer of SplitMix64 (Steele et al. 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

// Returns a number in [0, 1) with 53 random bits.
double uniform(std::uint64_t seed, std::int64_t position) {
  constexpr std::uint64_t step = 0x9E3779B97F4A7C15;
  const std::uint64_t bits = mix(mix(seed + step) + (static_cast<std::uint64_t>(position) + 1) * step);
  return std::ldexp(static_cast<double>(bits >> 11), -53);
}

// Returns probabilities that are not divided by their sum.
std::vector<double> weights_of(std::span<const double> logits, double greatest, double temperature) {
  std::vector<double> weights;
  weights.reserve(logits.size());
  for (const double logit : logits) weights.push_back(std::exp((logit - greatest) / temperature));
  return weights;
}

// Returns the sum of the shortest prefix of `order` with at least the share `top_p` of all weights, and shortens
// `order` to it.
double keep_nucleus(const std::vector<double>& weights, double top_p, std::vector<std::size_t>& order) {
  const double wanted = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (std::size_t kept = 0; kept < order.size(); ++kept) {
    sum += weights[order[kept]];
    if (sum >= wanted) {
      order.resize(kept + 1);
      break;
    }
  }
  return sum;
}

}  // namespace

std::int64_t choose_token(std::span<const double> logits, const Sampling& sampling, std::int64_t position) {
  TESSERA_CHECK(!logits.empty(), "no logits to choose a token from");
  for (std::size_t id = 0; id < logits.size(); ++id)
    if (!std::isfinite(logits[id]))
      throw Error(
          "the logit of token {} at position {} is {}, expected a finite number: weights of the model are not "
          "finite or too large",
          id, position, logits[id]);
  const auto greatest = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature == 0) return greatest - logits.begin();
  const std::vector<double> weights = weights_of(logits, *greatest, sampling.temperature);
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  const double sum = keep_nucleus(weights, sampling.top_p, order);
  double rest = uniform(sampling.seed, position) * sum;
  for (const std::size_t id : order) {
    if (rest < weights[id]) return static_cast<std::int64_t>(id);
    rest -= weights[id];
  }
  return static_cast<std::int64_t>(order.front());  // rounding left no id
}

}  // namespace tessera::infer
