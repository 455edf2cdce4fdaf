// Several data sets by weight.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

struct WeightedPrefix {
  double weight = 1.0;
  std::string prefix;
};

// `words`: PREFIX, or W1 PREFIX1 W2 PREFIX2 ... . InputError, naming `where` ("--data") and the word, when a weight is
// missing or no number above 0.
std::vector<WeightedPrefix> parse_blend(const std::vector<std::string>& words, const std::string& where);

// The shares of sets with these weights, in lowest terms. Weights that are decimals keep their proportion exactly
// (0.3 and 0.7: 3 and 7), others are rounded; each share is within 1/1000 of its weight's part of the whole. Errors:
// InputError, naming `where` and the weight, for one below 2000 / 2^52 of the whole that is not such a decimal.
std::vector<std::int64_t> shares_of(const std::vector<double>& weights, const std::string& where);
// The shares of a period of at most 65,536, at least one for each set, however far they are from the weights. Older
// checkpoints hold them.
std::vector<std::int64_t> coarse_shares(const std::vector<double>& weights);
inline constexpr double kLargestShareError = 1e-3;
// The share that is farthest from its weight: its set, and its part of all shares over its weight's part of all
// weights.
struct WorstShare {
  std::size_t set = 0;
  double ratio = 1;
  bool is_near() const { return std::abs(ratio - 1) < kLargestShareError; }
};
WorstShare worst_share(const std::vector<std::int64_t>& shares, const std::vector<double>& weights);

// Whose turn it is at each position of the blended stream of samples. The turns repeat after `period` positions, the
// sum of the shares, in which set i has exactly its share, so any position is found at once.
//
// Periods of at most 65,536 follow the rule of the largest deficit: position p goes to the set i with the largest
// share_i * (p + 1) - turns_i(p) * period, the first of equals. In longer ones two halves of the sets follow this rule,
// then the halves of the half that it chooses, until one set remains: of sets [first, last) the halves are [first,
// middle) and [middle, last) with middle = (first + last) / 2, a half's share is the sum of its sets', and p counts the
// turns of [first, last).
class BlendOrder {
 public:
  // One or more weights, all above 0. Errors: as shares_of.
  explicit BlendOrder(const std::vector<double>& weights, const std::string& where = "--data");
  static BlendOrder of_shares(std::vector<std::int64_t> shares);  // one or more, all above 0, their sum at most 2^53

  struct Turn {
    std::int64_t set = 0, index = 0;  // this is turn `index` of that set, from 0
  };
  Turn at(std::int64_t position) const;
  std::int64_t period() const { return before_.back(); }
  const std::vector<std::int64_t>& shares() const { return shares_; }  // turns of each set in a period

 private:
  BlendOrder() = default;
  void take(std::vector<std::int64_t> shares);
  Turn turn_by_halves(std::int64_t position) const;

  std::vector<std::int64_t> shares_;
  std::vector<std::int64_t> before_;  // [i]: the sum of the shares before set i
  std::vector<Turn> turns_;           // of a short period; empty for a long one
};

}  // namespace tessera::data
