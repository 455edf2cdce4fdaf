// A blend of several data sets by weight.
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

// Returns the shares of the sets with these weights, in lowest terms. Decimal weights keep their proportion exactly
// (0.3 and 0.7 become 3 and 7); other weights are rounded. Each set's fraction of all shares differs from its fraction
// of all weights by a factor within 1/1000 of 1. Throws InputError, which names `where` and the weight, for a weight
// that is not such a decimal and is below 2000 / 2^52 of the sum.
std::vector<std::int64_t> shares_of(const std::vector<double>& weights, const std::string& where);
// Returns shares with a sum of at most 65,536 and at least one for each set. The shares may be far from the weights.
// Older checkpoints store these shares.
std::vector<std::int64_t> coarse_shares(const std::vector<double>& weights);
inline constexpr double kLargestShareError = 1e-3;
// The share that differs most from its weight. `ratio` is the share's fraction of all shares over the weight's fraction
// of all weights.
struct WorstShare {
  std::size_t set = 0;
  double ratio = 1;
  bool is_near() const { return std::abs(ratio - 1) < kLargestShareError; }
};
WorstShare worst_share(const std::vector<std::int64_t>& shares, const std::vector<double>& weights);

// Assigns each position of the blended sample stream to a set. The assignment repeats after `period` positions, the sum
// of the shares. In each period set i has exactly its share of the positions, so a position is found without a scan.
//
// If the period is at most 65,536, position p goes to the set i with the largest deficit
//   share_i * (p + 1) - turns_i(p) * period
// and ties go to the first set. For a longer period, the same rule chooses between two halves of the sets, then between
// the halves of the chosen half, until one set remains. The sets [first, last) have the halves [first, middle) and
// [middle, last) with middle = (first + last) / 2. The share of a half is the sum of its sets' shares, and p counts the
// turns of [first, last).
class BlendOrder {
 public:
  // `weights`: one or more, all above 0. Throws the errors of shares_of.
  explicit BlendOrder(const std::vector<double>& weights, const std::string& where = "--data");
  static BlendOrder from_shares(std::vector<std::int64_t> shares);  // one or more, all above 0; sum at most 2^53

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
  std::vector<Turn> turns_;           // of a period of at most 65,536; else empty
};

}  // namespace tessera::data
