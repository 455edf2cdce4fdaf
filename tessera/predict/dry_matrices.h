// The exchanges of updates by rules of whole matrices, planned without a run.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "tessera/ops/optimizer/update_policy.h"
#include "tessera/runtime/program.h"
#include "tessera/shard/matrices/matrix_plan.h"

namespace tessera::predict {

// Plans the exchanges of one rank, as train/update/matrix_update.h plans those of a run.
class DryMatrices {
 public:
  // `program` and `policy` must outlive the object. zero: RuntimeOptions::zero.
  DryMatrices(runtime::Program& program, const ops::UpdatePolicy& policy, const shard::RankLayout& layout, int rank,
              bool zero);

  bool is_needed() const { return !rules_.empty(); }
  // Returns the exchanges of the next bucket, in the order of their calls.
  std::vector<runtime::MatrixExchange> exchanges(std::span<const schedule::ParameterId> bucket);

  // Return DryStep::matrix_buffers, DryStep::matrix_scratch and DryStep::matrix_flops of the buckets so far.
  std::int64_t buffers() const;
  std::int64_t scratch() const;
  const std::vector<double>& flops() const { return flops_; }

 private:
  // A rule of the policy, with the plan and the largest buffers of its exchanges.
  struct Rule {
    const ops::UpdateRule* rule = nullptr;
    shard::MatrixPlan plan;
    std::int64_t state_bytes = 0, matrix_bytes = 0, scratch_bytes = 0;
  };
  runtime::Program& program_;
  const ops::UpdatePolicy& policy_;
  std::vector<Rule> rules_;
  std::vector<double> flops_;
};

}  // namespace tessera::predict
