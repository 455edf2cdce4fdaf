#include "tessera/serve/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::serve {
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

// Returns the probabilities without dividing them by their sum.
std::vector<double> weights_of(std::span<const double> logits, double greatest, double temperature) {
  std::vector<double> weights;
  weights.reserve(logits.size());
  for (const double logit : logits) weights.push_back(std::exp((logit - greatest) / temperature));
  return weights;
}

// Returns ids in the order of falling weights. Ids of equal weight are in ascending order. Usually only the first ids
// of a large vocabulary are needed, so the class orders one id at a time.
class FallingIds {
 public:
  explicit FallingIds(const std::vector<double>& weights) : after_{weights}, heap_(weights.size()) {
    std::iota(heap_.begin(), heap_.end(), std::size_t{0});
    std::ranges::make_heap(heap_, after_);
  }
  bool is_empty() const { return heap_.empty(); }
  std::size_t next() {
    std::ranges::pop_heap(heap_, after_);
    const std::size_t id = heap_.back();
    heap_.pop_back();
    return id;
  }

 private:
  // Returns whether id a comes after id b.
  struct After {
    const std::vector<double>& weights;
    bool operator()(std::size_t a, std::size_t b) const {
      return weights[a] < weights[b] || (weights[a] == weights[b] && a > b);
    }
  };
  After after_;
  std::vector<std::size_t> heap_;
};

// Returns the sum of the shortest prefix whose sum is at least `top_p` times the sum of all weights.
double sum_of_nucleus(const std::vector<double>& weights, double top_p) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (top_p == 1) return all;
  FallingIds ids(weights);
  double sum = 0;
  while (sum < top_p * all && !ids.is_empty()) sum += weights[ids.next()];
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
  double rest = uniform(sampling.seed, position) * sum_of_nucleus(weights, sampling.top_p);
  for (FallingIds ids(weights); !ids.is_empty();) {
    const std::size_t id = ids.next();
    if (rest < weights[id]) return static_cast<std::int64_t>(id);
    rest -= weights[id];
  }
  return greatest - logits.begin();  // the loop ends without an id only because of rounding
}

}  // namespace tessera::serve
