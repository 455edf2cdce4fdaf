#include "tessera/shard/matrices/matrix_ranks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

// The ranks of one list of candidates, by sum and then by rank.
using Order = std::set<std::pair<double, int>>;

void check(const MatrixWork& matrix, std::size_t ranks) {
  TESSERA_CHECK(!matrix.candidates.empty(), "matrix ranks: a matrix has no candidates");
  TESSERA_CHECK(matrix.candidates.front() >= 0 && static_cast<std::size_t>(matrix.candidates.back()) < ranks &&
                    std::ranges::is_sorted(matrix.candidates, std::less_equal<int>()),
                "matrix ranks: expected candidates in ascending order, from 0 to {}", ranks - 1);
}

// The candidates with their sums. Lists of candidates may share ranks, so an order may have old sums, which are lower
// than the rank's sum. They are corrected when they are read.
class Candidates {
 public:
  Candidates(std::span<const int> ranks, const std::vector<double>& sums) {
    for (const int rank : ranks) order_.emplace(sums[static_cast<std::size_t>(rank)], rank);
  }
  int least(const std::vector<double>& sums) {
    while (true) {
      const auto [sum, rank] = *order_.begin();
      const double now = sums[static_cast<std::size_t>(rank)];
      if (sum == now) return rank;
      order_.erase(order_.begin());
      order_.emplace(now, rank);
    }
  }

 private:
  Order order_;
};

}  // namespace

std::vector<int> MatrixRanks::assign(std::span<const MatrixWork> bucket) {
  std::vector<std::size_t> order(bucket.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return bucket[i].flops; });
  std::map<std::pair<const int*, std::size_t>, Candidates> lists;
  std::vector<int> ranks(bucket.size());
  for (const std::size_t i : order) {
    const std::span<const int> candidates = bucket[i].candidates;
    auto found = lists.find({candidates.data(), candidates.size()});
    if (found == lists.end()) {
      check(bucket[i], sums_.size());
      found = lists.emplace(std::pair(candidates.data(), candidates.size()), Candidates(candidates, sums_)).first;
    }
    ranks[i] = found->second.least(sums_);
    sums_[static_cast<std::size_t>(ranks[i])] += bucket[i].flops;
  }
  return ranks;
}

}  // namespace tessera::shard
