// The exchanges of an update by a rule of whole matrices. One rank computes with a whole matrix: its matrix rank
// (matrix_ranks.h). The directions u travel from the state layout to the matrix ranks, and the results X travel back:
//
//   gather   redistribute(state layout -> whole matrices on their matrix ranks)
//   scatter  redistribute(whole matrices -> state layout)
//
// All matrices of a bucket with one type travel in one redistribution. For this purpose, the parameters are stacked by
// rows in one tensor. The ranks of a replica exchange matrices (Transfer::matrices). If each replica updates a part of
// the weights (ZeRO-1), all ranks do (Transfer::replica_matrices). Pure.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/matrices/matrix_blocks.h"
#include "tessera/shard/matrices/matrix_ranks.h"
#include "tessera/shard/rank_layout.h"

namespace tessera::shard {

// A parameter of a bucket. `type` is the type in which its directions travel.
struct MatrixParameter {
  schedule::ParameterId id = schedule::kNoParameter;
  const ParameterSpec* spec = nullptr;
  quant::DType type = quant::DType::fp32;
};

// Matrices of one shape that this rank computes with. Matrix i is dense and begins at element offset + i * stride of
// the rank's matrix buffer.
struct LocalMatrices {
  std::int64_t rows = 0, cols = 0, count = 0, offset = 0, stride = 0;
};

// The matrices of a bucket with one type. The layouts are over the ranks of the group, in their order.
struct JoinedMatrices {
  quant::DType type = quant::DType::fp32;
  std::vector<schedule::ParameterId> ids;   // in the order of the bucket
  std::vector<std::int64_t> state_offsets;  // by id: where this rank's state part begins in its state buffer
  layout::Layout states, wholes;            // of the stack of the parameters
  std::vector<LocalMatrices> own;
  // The most bytes that a rank of the group receives in the gather and in the scatter.
  std::int64_t gathered_bytes = 0, scattered_bytes = 0;
  std::vector<double> flops;  // by rank of the group: of its matrices

  // The elements of the largest state buffer and of the largest matrix buffer of a rank. All ranks allocate these
  // sizes.
  std::int64_t state_elements() const;
  std::int64_t matrix_elements() const;
  // Returns the matrices of a rank of the group, by shape.
  std::vector<LocalMatrices> matrices_of(int rank) const;
};

// Each buffer of a parameter and of a matrix begins at a multiple of this number of elements.
inline constexpr std::int64_t kMatrixAlignment = 128;

class MatrixPlan {
 public:
  using Flops = std::function<double(std::int64_t rows, std::int64_t cols)>;

  // `zero`: RuntimeOptions::zero. flops: of the computation with one matrix. Throws Error if the replicas of the
  // domains have different ranks.
  MatrixPlan(const RankLayout& layout, int rank, bool zero, Flops flops);

  mesh::Transfer transfer() const { return transfer_; }
  const std::vector<int>& group() const { return group_; }  // world ranks, in the order of the communicator
  int group_rank() const { return own_; }
  // Plans the next bucket. The sums of flops carry over from bucket to bucket. Returns one result for each type, in the
  // order in which the types first occur. All ranks of a group pass equal buckets in the same order. Throws the errors
  // of layouts_of and matrix_blocks.
  std::vector<JoinedMatrices> add(std::span<const MatrixParameter> bucket);

 private:
  struct Task;
  const std::vector<layout::LocalLayout>& states_of(const ParameterSpec& spec);
  JoinedMatrices join(std::span<const MatrixParameter> parameters, std::vector<Task>& tasks);
  void place(JoinedMatrices& joined, const std::vector<Task>& tasks, std::span<const int> ranks) const;

  RankLayout layout_;
  bool zero_;
  Flops flops_;
  mesh::Transfer transfer_;
  std::vector<int> group_;
  int own_ = 0;
  MatrixRanks ranks_;
  std::vector<std::pair<ParameterSpec, std::vector<layout::LocalLayout>>> known_;  // specs without names
  std::set<std::vector<int>> candidates_;
};

}  // namespace tessera::shard
