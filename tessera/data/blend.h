// Blends several data sets in the proportion of their weights.
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

// Parses PREFIX, or W1 PREFIX1 W2 PREFIX2 ... . Throws InputError, which names `where` ("--data") and the word, if a
// weight is missing or is not a number above 0.
std::vector<WeightedPrefix> parse_blend(const std::vector<std::string>& words, const std::string& where);

// Returns integers in the proportion of the weights, in lowest terms: the shares of the sets. Decimal weights keep
// their proportion exactly if the sum of the shares is at most 65,536 (0.3 and 0.7 become 3 and 7). Other weights may
// be rounded. The relative error of a share is less than kLargestShareError. Throws InputError, which names `where` and
// the weight, if rounding is necessary and a weight is below 2000 / 2^52 of the sum.
std::vector<std::int64_t> shares_of(const std::vector<double>& weights, const std::string& where);
// Returns shares of at least 1 with a sum of at most 65,536. The shares may differ much from the weights. Older
// checkpoints store these shares.
std::vector<std::int64_t> coarse_shares(const std::vector<double>& weights);
inline constexpr double kLargestShareError = 1e-3;
// The share with the largest relative error. `ratio` is (share / sum of the shares) / (weight / sum of the weights).
struct WorstShare {
  std::size_t set = 0;
  double ratio = 1;
  bool is_near() const { return std::abs(ratio - 1) < kLargestShareError; }
};
WorstShare worst_share(const std::vector<std::int64_t>& shares, const std::vector<double>& weights);

// Assigns each position of the blended sample stream to a set. A position that is assigned to a set is a turn of the
// set. The assignment repeats after `period` positions, the sum of the shares. In each period, set i has share_i turns.
// The turn at a position is therefore computed without a scan of earlier positions.
//
// If the period is at most 65,536, position p is assigned to the set i with the largest deficit
//   share_i * (p + 1) - turns_i(p) * period
// where turns_i(p) is the number of turns of set i before p. If deficits are equal, the first set is chosen. For a
// longer period, the same rule chooses between two halves of the sets, then between the halves of the chosen half,
// until one set remains. The sets [first, last) have the halves [first, middle) and [middle, last) with middle = (first
// + last) / 2. The share of a half is the sum of the shares of its sets. In this rule, p is the number of earlier turns
// of [first, last).
class BlendOrder {
 public:
  // `weights`: one or more, all above 0. Throws the errors of shares_of.
  explicit BlendOrder(const std::vector<double>& weights, const std::string& where = "--data");
  static BlendOrder from_shares(
      std::vector<std::int64_t> shares);  // `shares`: one or more, all above 0; sum at most 2^53

  struct Turn {
    std::int64_t set = 0, index = 0;  // `index`: number of the set's turn, from 0
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
  std::vector<Turn> turns_;           // all turns of a period of at most 65,536; empty for a longer period
};

}  // namespace tessera::data
