// Several data sets by weight.
#pragma once
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

// Whose turn it is at each position of the blended stream of samples, by the rule of the largest deficit: position p
// goes to the set i with the largest weight_i * (p + 1) - turns_i(p), the first of equals. The turns repeat after
// `period` positions, in which set i has exactly its share, so any position is found at once. Weights are taken as
// shares of the period: exactly, when they are decimals that make a period of at most 65,536 (0.3 and 0.7: 3 and 7 of
// 10); else rounded to 1/65,536 of the whole, at least one part each.
class BlendOrder {
 public:
  explicit BlendOrder(const std::vector<double>& weights);  // one or more, all above 0

  struct Turn {
    std::int64_t set = 0, index = 0;  // this is turn `index` of that set, from 0
  };
  Turn at(std::int64_t position) const;
  std::int64_t period() const { return static_cast<std::int64_t>(turns_.size()); }
  const std::vector<std::int64_t>& shares() const { return shares_; }  // turns of each set in a period

 private:
  std::vector<std::int64_t> shares_;
  std::vector<Turn> turns_;  // of one period
};

}  // namespace tessera::data
