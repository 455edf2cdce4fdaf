#include "tessera/data/blend.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kLongestPeriod = 65536;

double parse_weight(const std::string& word, const std::string& where) {
  double weight = 0;
  const char* end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data(), end, weight);
  if (error != std::errc{} || stopped != end || !std::isfinite(weight) || weight <= 0)
    throw InputError("{}: weight '{}': expected a number above 0 (W1 PREFIX1 W2 PREFIX2 ...)", where, word);
  return weight;
}

// Integers in the proportion of the weights, when multiplying by a small power of ten makes such; else empty.
std::vector<std::int64_t> exact_shares(const std::vector<double>& weights) {
  for (double scale = 1; scale <= 10000; scale *= 10) {
    std::vector<std::int64_t> shares;
    double sum = 0;
    for (const double weight : weights) {
      const double share = std::round(weight * scale);
      if (share < 1 || std::abs(weight * scale - share) > 1e-9 * share) break;
      if ((sum += share) > static_cast<double>(kLongestPeriod)) return {};
      shares.push_back(static_cast<std::int64_t>(share));
    }
    if (shares.size() == weights.size()) return shares;
  }
  return {};
}

// Shares of kLongestPeriod: rounded down, at least 1, what is missing given to those that lost most.
std::vector<std::int64_t> rounded_shares(const std::vector<double>& weights) {
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  std::vector<std::int64_t> shares;
  std::vector<double> ideal;
  for (const double weight : weights) {
    ideal.push_back(weight / largest / sum * static_cast<double>(kLongestPeriod));
    shares.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(ideal.back())));
  }
  std::int64_t missing = kLongestPeriod - std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  const auto loss = [&](std::size_t i) { return ideal[i] - static_cast<double>(shares[i]); };
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (; missing != 0; missing += missing > 0 ? -1 : 1) {  // at most one step a set
    const auto by_loss = [&](std::size_t a, std::size_t b) { return loss(a) < loss(b); };
    const auto at = missing > 0 ? std::max_element(order.begin(), order.end(), by_loss)
                                : std::max_element(order.begin(), order.end(),
                                                   [&](std::size_t a, std::size_t b) { return shares[a] < shares[b]; });
    shares[*at] += missing > 0 ? 1 : -1;
  }
  return shares;
}

}  // namespace

std::vector<WeightedPrefix> parse_blend(const std::vector<std::string>& words, const std::string& where) {
  if (words.empty()) throw InputError("{}: is empty, expected PREFIX, or W1 PREFIX1 W2 PREFIX2 ...", where);
  if (words.size() == 1) return {{.weight = 1.0, .prefix = words[0]}};
  if (words.size() % 2 != 0)
    throw InputError("{}: got {} words ('{}' ...), expected PREFIX, or pairs W1 PREFIX1 W2 PREFIX2 ...", where,
                     words.size(), words[0]);
  if (words.size() / 2 > static_cast<std::size_t>(kLongestPeriod))
    throw InputError("{}: got {} sets, expected at most {}", where, words.size() / 2, kLongestPeriod);
  std::vector<WeightedPrefix> sets;
  for (std::size_t i = 0; i < words.size(); i += 2)
    sets.push_back({.weight = parse_weight(words[i], where), .prefix = words[i + 1]});
  return sets;
}

BlendOrder::BlendOrder(const std::vector<double>& weights) {
  TESSERA_CHECK(!weights.empty() && weights.size() <= static_cast<std::size_t>(kLongestPeriod),
                "a blend of {} sets, expected 1 to {}", weights.size(), kLongestPeriod);
  for (const double weight : weights) TESSERA_CHECK(weight > 0, "weight {} of a blend is not above 0", weight);
  shares_ = exact_shares(weights);
  if (shares_.empty()) shares_ = rounded_shares(weights);
  std::int64_t divisor = 0, period = 0;
  for (const std::int64_t share : shares_) divisor = std::gcd(divisor, share);
  for (std::int64_t& share : shares_) period += share /= divisor;
  std::vector<std::int64_t> taken(shares_.size());
  turns_.reserve(static_cast<std::size_t>(period));
  for (std::int64_t p = 0; p < period; ++p) {
    const auto deficit = [&](std::size_t i) { return shares_[i] * (p + 1) - taken[i] * period; };
    std::size_t chosen = 0;
    for (std::size_t i = 1; i < shares_.size(); ++i)
      if (deficit(i) > deficit(chosen)) chosen = i;
    turns_.push_back({.set = static_cast<std::int64_t>(chosen), .index = taken[chosen]++});
  }
}

BlendOrder::Turn BlendOrder::at(std::int64_t position) const {
  const Turn turn = turns_[static_cast<std::size_t>(position % period())];
  return {.set = turn.set, .index = position / period() * shares_[static_cast<std::size_t>(turn.set)] + turn.index};
}

}  // namespace tessera::data
