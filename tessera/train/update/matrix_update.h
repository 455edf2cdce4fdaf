// Updates parameters by a rule of whole matrices (ops/optimizer/matrices/matrix_rule.h), bucket by bucket:
//
//   directions   this rank's state parts: u, in the type of the model
//   gather       u of each matrix to its matrix rank
//   iterate      the whole matrices of this rank
//   scatter      X to the ranks that store state parts
//   update       this rank's masters and weights
//
// shard/matrices/matrix_plan.h plans the exchanges.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/comm/redistribution.h"
#include "tessera/ops/optimizer/matrices/matrix_rule.h"
#include "tessera/runtime/runtime.h"
#include "tessera/shard/matrices/matrix_plan.h"

namespace tessera::train {

// A parameter and this rank's state part of it, with its gradient and its state plane.
struct MatrixShard {
  schedule::ParameterId id = schedule::kNoParameter;
  ops::UpdateShard shard;
};

// One object per runtime and rule. Both must outlive the object. Used by one thread.
class MatrixUpdate {
 public:
  // Makes the communicator of the exchanges. Collective over the world. Throws the errors of shard::MatrixPlan.
  MatrixUpdate(runtime::Runtime& runtime, const ops::MatrixRule& rule);

  // Updates the parameters of a bucket. `scalars` are those of the rule's groups. On a GPU, the call enqueues the work.
  // All ranks pass equal parameters in the same order. Plans the exchanges if the bucket is new. Collective over the
  // ranks of the exchanges.
  void update(std::span<const MatrixShard> bucket, const std::byte* scalars, const ops::Clip* clip);
  // Returns the allocated bytes: u, X, and on a GPU the scratch of the iterations.
  std::int64_t bytes() const { return static_cast<std::int64_t>(states_.size() + matrices_.size() + scratch_.size()); }

 private:
  ops::MatrixBatch batch_of(const shard::JoinedMatrices& joined, const shard::LocalMatrices& matrices);
  // The exchanges of a bucket with one type.
  struct Exchange {
    shard::JoinedMatrices joined;
    comm::Redistribution gather, scatter;
  };
  std::vector<Exchange>& exchanges_of(std::span<const MatrixShard> bucket);
  void update_joined(const Exchange& exchange, std::span<const MatrixShard> bucket, const std::byte* scalars,
                     const ops::Clip* clip);
  std::vector<ops::DirectionShard> directions_of(const shard::JoinedMatrices& joined,
                                                 std::span<const MatrixShard> bucket);
  std::vector<ops::UpdateShard> updates_of(const shard::JoinedMatrices& joined, std::span<const MatrixShard> bucket);
  void move(const Exchange& exchange, bool is_scatter);
  std::byte* state_at(const shard::JoinedMatrices& joined, std::int64_t element);

  runtime::Runtime& runtime_;
  const ops::MatrixRule& rule_;
  shard::MatrixPlan plan_;
  std::map<std::vector<schedule::ParameterId>, std::vector<Exchange>> buckets_;
  // u and X of a bucket: this rank's state parts, and its whole matrices. As large as the largest bucket.
  base::Buffer states_, matrices_;
  base::Buffer scratch_;  // of the iterations on a GPU
};

}  // namespace tessera::train
