#include "tessera/data/blend.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kShortPeriod = 65536;  // longest period for which a table stores the order of the sets
constexpr std::int64_t kLongestPeriod = std::int64_t{1} << 53;
constexpr std::size_t kMaxSets = 65536;
// In long periods, rounded shares are fractions of kRoundedWhole, rounded down, and at least kSmallestRounded.
constexpr double kRoundedWhole = 0x1p52, kSmallestRounded = 2 / kLargestShareError;

double parse_weight(const std::string& word, const std::string& where) {
  double weight = 0;
  const char* end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data(), end, weight);
  if (error != std::errc{} || stopped != end || !std::isfinite(weight) || weight <= 0)
    throw InputError(
        "{}: weight '{}': expected a number above 0: several sets need weights (W1 PREFIX1 W2 PREFIX2 ...)", where,
        word);
  return weight;
}

// Returns integers in the proportion of the weights: the weights times a power of ten up to `largest_scale`. The sum of
// the shares is at most `largest_sum`. Returns an empty vector if no power of ten fits.
std::vector<std::int64_t> exact_shares(const std::vector<double>& weights, double largest_scale, double largest_sum) {
  for (double scale = 1; scale <= largest_scale; scale *= 10) {
    std::vector<std::int64_t> shares;
    double sum = 0;
    for (const double weight : weights) {
      const double share = std::round(weight * scale);
      if (share < 1 || std::abs(weight * scale - share) > 1e-9 * share) break;
      if ((sum += share) > largest_sum) return {};
      shares.push_back(static_cast<std::int64_t>(share));
    }
    if (shares.size() == weights.size()) return shares;
  }
  return {};
}

// Returns each weight divided by the sum of all weights.
std::vector<double> parts_of(const std::vector<double>& weights) {
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  std::vector<double> parts;
  for (const double weight : weights) parts.push_back(weight / largest / sum);
  return parts;
}

std::vector<std::int64_t> in_lowest_terms(std::vector<std::int64_t> shares) {
  std::int64_t divisor = 0;
  for (const std::int64_t share : shares) divisor = std::gcd(divisor, share);
  for (std::int64_t& share : shares) share /= divisor;
  return shares;
}

// Returns shares with a sum of kShortPeriod. Each share is rounded down and is at least 1. If the sum is too small, the
// shares that rounding reduced most are increased. If the sum is too large, the largest shares are reduced.
std::vector<std::int64_t> rounded_shares(const std::vector<double>& weights) {
  std::vector<std::int64_t> shares;
  std::vector<double> ideal;
  for (const double part : parts_of(weights)) {
    ideal.push_back(part * static_cast<double>(kShortPeriod));
    shares.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(ideal.back())));
  }
  std::int64_t missing = kShortPeriod - std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  const auto loss = [&](std::size_t i) { return ideal[i] - static_cast<double>(shares[i]); };
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (; missing != 0; missing += missing > 0 ? -1 : 1) {  // at most one iteration per set
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
  if (words.size() / 2 > kMaxSets)
    throw InputError("{}: got {} sets, expected at most {}", where, words.size() / 2, kMaxSets);
  std::vector<WeightedPrefix> sets;
  for (std::size_t i = 0; i < words.size(); i += 2)
    sets.push_back({.weight = parse_weight(words[i], where), .prefix = words[i + 1]});
  return sets;
}

std::vector<std::int64_t> coarse_shares(const std::vector<double>& weights) {
  std::vector<std::int64_t> shares = exact_shares(weights, 1e4, static_cast<double>(kShortPeriod));
  return in_lowest_terms(shares.empty() ? rounded_shares(weights) : std::move(shares));
}

WorstShare worst_share(const std::vector<std::int64_t>& shares, const std::vector<double>& weights) {
  const std::vector<double> parts = parts_of(weights);
  const auto sum = static_cast<double>(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}));
  WorstShare worst;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double ratio = static_cast<double>(shares[i]) / sum / parts[i];
    if (std::abs(ratio - 1) > std::abs(worst.ratio - 1)) worst = {.set = i, .ratio = ratio};
  }
  return worst;
}

std::vector<std::int64_t> shares_of(const std::vector<double>& weights, const std::string& where) {
  TESSERA_CHECK(!weights.empty() && weights.size() <= kMaxSets, "a blend of {} sets, expected 1 to {}", weights.size(),
                kMaxSets);
  for (const double weight : weights) TESSERA_CHECK(weight > 0, "weight {} of a blend is not above 0", weight);
  std::vector<std::int64_t> shares = coarse_shares(weights);
  if (worst_share(shares, weights).is_near()) return shares;
  shares = exact_shares(weights, 1e15, static_cast<double>(kLongestPeriod));
  if (!shares.empty()) return in_lowest_terms(std::move(shares));
  const std::vector<double> parts = parts_of(weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = std::floor(parts[i] * kRoundedWhole);
    if (share < kSmallestRounded)
      throw InputError("{}: weight {} is {:.3g} of the sum of the weights, expected at least {:.3g}", where, weights[i],
                       parts[i], kSmallestRounded / kRoundedWhole);
    shares.push_back(static_cast<std::int64_t>(share));
  }
  return in_lowest_terms(std::move(shares));
}

BlendOrder::BlendOrder(const std::vector<double>& weights, const std::string& where) {
  take(shares_of(weights, where));
}

BlendOrder BlendOrder::from_shares(std::vector<std::int64_t> shares) {
  BlendOrder order;
  order.take(std::move(shares));
  return order;
}

void BlendOrder::take(std::vector<std::int64_t> shares) {
  shares_ = std::move(shares);
  before_ = {0};
  for (const std::int64_t share : shares_) {
    TESSERA_CHECK(share > 0 && share <= kLongestPeriod - before_.back(), "share {} of a blend, expected 1 to {}", share,
                  kLongestPeriod - before_.back());
    before_.push_back(before_.back() + share);
  }
  TESSERA_CHECK(!shares_.empty(), "a blend without sets");
  if (period() > kShortPeriod) return;
  std::vector<std::int64_t> taken(shares_.size());
  turns_.reserve(static_cast<std::size_t>(period()));
  for (std::int64_t p = 0; p < period(); ++p) {
    const auto deficit = [&](std::size_t i) { return shares_[i] * (p + 1) - taken[i] * period(); };
    std::size_t chosen = 0;
    for (std::size_t i = 1; i < shares_.size(); ++i)
      if (deficit(i) > deficit(chosen)) chosen = i;
    turns_.push_back({.set = static_cast<std::int64_t>(chosen), .index = taken[chosen]++});
  }
}

BlendOrder::Turn BlendOrder::turn_by_halves(std::int64_t position) const {
  __extension__ using Wide = __int128;
  std::size_t first = 0, last = shares_.size();
  while (last - first > 1) {
    const std::size_t middle = (first + last) / 2;
    const std::int64_t left = before_[middle] - before_[first], both = before_[last] - before_[first];
    // Before each turn, the deficits of the two halves sum to `both`. Therefore the left half has had n * left / both
    // of the first n turns, rounded to the nearest integer, with ties rounded up.
    const auto turns_of_left = [&](std::int64_t n) {
      return static_cast<std::int64_t>((Wide{2} * n * left + both) / (Wide{2} * both));
    };
    const std::int64_t taken = turns_of_left(position);
    if (turns_of_left(position + 1) > taken) {
      last = middle;
      position = taken;
    } else {
      first = middle;
      position -= taken;
    }
  }
  return {.set = static_cast<std::int64_t>(first), .index = position};
}

BlendOrder::Turn BlendOrder::at(std::int64_t position) const {
  const std::int64_t within = position % period();
  Turn turn = turns_.empty() ? turn_by_halves(within) : turns_[static_cast<std::size_t>(within)];
  turn.index += position / period() * shares_[static_cast<std::size_t>(turn.set)];
  return turn;
}

}  // namespace tessera::data
