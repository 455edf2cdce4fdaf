// Chooses the experts of one token on a CPU. Internal to ops/experts.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/exponential.h"
#include "tessera/ops/router/router_options.h"

namespace tessera::ops {

inline void check_rule(const RouterOptions& options, std::int64_t experts) {
  TESSERA_CHECK(options.k >= 1 && options.k <= experts, "route: {} of {} experts", options.k, experts);
  const std::int64_t groups = options.groups, chosen = options.chosen_groups;
  TESSERA_CHECK(groups >= 1 && experts % groups == 0 && (groups == 1 || experts / groups >= 2),
                "route: {} experts in {} groups, expected groups of equal length with at least 2 experts", experts,
                groups);
  TESSERA_CHECK(chosen >= 1 && chosen <= groups && options.k <= experts / groups * chosen,
                "route: {} experts of a token from {} of {} groups of {} experts", options.k, chosen, groups,
                experts / groups);
}

// Writes the sigmoid of each logit to `scores`. Returns 0 as the logsumexp, which sigmoid scores do not have.
template <typename A>
A sigmoids(const A* logits, A* scores, std::int64_t count) {
  for (std::int64_t e = 0; e < count; ++e) scores[e] = A{1} / (A{1} + exponential(-logits[e]));
  return 0;
}

// Returns the index of the largest value that is not taken; among equal values, the first index. NaN is lower than
// every number, so repeated calls return distinct indices even if values are NaN.
template <typename A>
std::int64_t best_left(const A* values, const std::vector<bool>& is_taken) {
  const auto is_above = [](A a, A b) { return b != b ? a == a : a > b; };
  std::int64_t best = -1;
  for (std::size_t i = 0; i < is_taken.size(); ++i)
    if (!is_taken[i] && (best < 0 || is_above(values[i], values[best]))) best = static_cast<std::int64_t>(i);
  return best;
}

// Returns for each expert whether the expert is outside the chosen groups of the token.
template <typename A>
std::vector<bool> outside_of_groups(const A* ranks, std::int64_t count, const RouterOptions& options) {
  const auto groups = static_cast<std::size_t>(options.groups), size = static_cast<std::size_t>(count) / groups;
  std::vector<bool> is_outside(static_cast<std::size_t>(count), groups > 1);
  if (groups == 1) return is_outside;
  std::vector<A> values;
  for (std::size_t group = 0; group < groups; ++group) {
    const A* own = ranks + group * size;
    std::vector<bool> is_taken(size, false);
    const std::int64_t first = best_left(own, is_taken);
    is_taken[static_cast<std::size_t>(first)] = true;
    values.push_back(own[first] + own[best_left(own, is_taken)]);
  }
  std::vector<bool> is_chosen(groups, false);
  for (std::int64_t i = 0; i < options.chosen_groups; ++i) {
    const auto group = static_cast<std::size_t>(best_left(values.data(), is_chosen));
    is_chosen[group] = true;
    for (std::size_t e = group * size; e < (group + 1) * size; ++e) is_outside[e] = false;
  }
  return is_outside;
}

// Writes the chosen experts of a token and their weights. `bias` is null or has one number for each expert.
template <typename A>
void choose(const A* scores, const A* bias, std::int64_t count, const RouterOptions& options, std::int32_t* experts,
            A* weights) {
  std::vector<A> biased;
  const A* ranks = scores;
  if (bias != nullptr) {
    for (std::int64_t e = 0; e < count; ++e) biased.push_back(scores[e] + bias[e]);
    ranks = biased.data();
  }
  A not_finite = 0;  // 0, or NaN if a score is NaN or infinite
  for (std::int64_t e = 0; e < count; ++e) not_finite += A{0} * scores[e];
  std::vector<bool> is_taken = outside_of_groups(ranks, count, options);
  A sum = 0;
  for (std::int64_t slot = 0; slot < options.k; ++slot) {
    const std::int64_t best = best_left(ranks, is_taken);
    is_taken[static_cast<std::size_t>(best)] = true;
    experts[slot] = static_cast<std::int32_t>(best);
    sum += weights[slot] = scores[best] + not_finite;
  }
  const A divisor = options.normalizes ? sum + static_cast<A>(options.least_sum()) : A{1};
  const A scale = static_cast<A>(options.scale);
  for (std::int64_t slot = 0; slot < options.k; ++slot) weights[slot] = weights[slot] / divisor * scale;
}

}  // namespace tessera::ops
