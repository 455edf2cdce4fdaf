// Chooses the rank that iterates each matrix of an update (docs/optimizers.md). Pure.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::shard {

// A matrix of a bucket. `candidates` are the ranks that store a part of the matrix's state, in ascending order.
struct MatrixWork {
  double flops = 0;
  std::span<const int> candidates;
};

// Assigns matrices to ranks, bucket by bucket. The sums of the ranks carry over from bucket to bucket. If every rank is
// always a candidate, the sums of two ranks differ by at most the flops of the largest matrix.
class MatrixRanks {
 public:
  explicit MatrixRanks(int ranks) : sums_(static_cast<std::size_t>(ranks)) {}

  // Returns the rank of each matrix of a bucket. The matrices are taken in the order of falling flops, and equal ones
  // in the order of the bucket. Each matrix goes to the candidate with the least flops so far; of equal candidates, to
  // the lowest rank. Throws Error for a matrix without candidates and for a candidate that is not a rank. Matrices
  // whose candidates are one span (equal address and size) take O(log ranks) time each.
  std::vector<int> assign(std::span<const MatrixWork> bucket);
  // Returns the flops of each rank so far.
  const std::vector<double>& sums() const { return sums_; }

 private:
  std::vector<double> sums_;
};

}  // namespace tessera::shard
