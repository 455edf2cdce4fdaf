// A dry step: the model's real forward and backward passes on tensors that have shapes but no data. A dry step gives
// the same events as a run records, and the work of every operator.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "tessera/models/step_options.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/update_policy.h"
#include "tessera/ops/work.h"

namespace tessera::predict {

struct DryOptions {
  models::StepOptions step;
  std::shared_ptr<const ops::UpdatePolicy> update = ops::one_rule(ops::make_rule(ops::AdamW{}));  // not null
  int rank = 0;  // rank whose step is computed
  schedule::StepKind kind = schedule::StepKind::train;
  std::int64_t sequences = 1, seq_len = 1;  // sizes of one microbatch
};

struct DryStep {
  std::vector<shard::ParameterSpec> parameters;         // by id; weights first, then backward weights
  std::vector<schedule::ParameterId> backward_weights;  // by weight: the id of its backward weight, or kNoParameter
  std::vector<shard::Cuts> cuts;                        // by domain: the cuts of DryOptions::rank
  std::vector<int> compute_ranks;  // by domain: number of ranks in the compute group of DryOptions::rank
  // microbatch: the events of one microbatch; all microbatches have equal events. optimizer: the events after the last
  // microbatch.
  schedule::Trace microbatch, optimizer;
  std::vector<int> waits;              // by event of the microbatch: runtime::DryRun::waits()
  std::vector<std::int64_t> received;  // by event of the microbatch: runtime::DryRun::received()
  // By event of the microbatch: the work before the event. The last entry is the work after the last event.
  std::vector<std::vector<ops::Work>> work;
  // By number format, for one microbatch. flops: of products with weights. activations: bytes that this rank receives
  // in the program's collectives.
  std::array<std::int64_t, quant::kFormats> flops{}, activations{};
  // The work of rules of whole matrices (shard/matrices/matrix_plan.h). matrix_buffers: bytes of the directions and
  // results of this rank. matrix_scratch: bytes that the iterations of this rank need in addition on a GPU.
  // matrix_flops: by exchange that gathers matrices, the most flops of a rank before its scatter.
  std::int64_t matrix_buffers = 0, matrix_scratch = 0;
  std::vector<double> matrix_flops;
  std::int64_t transfer_arena = 0;  // runtime::DryRun::transfer_arena()

  // Returns the events of a step with this number of microbatches.
  schedule::Trace trace(int microbatches) const;
};

// Throws the errors that the model and its parameters throw in a real run.
DryStep dry_step(const DryOptions& options);

}  // namespace tessera::predict
