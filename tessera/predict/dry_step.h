// A step of a model as its module does it dry: the real forward and backward passes, on tensors that have shapes and no
// memory. The events are those that a run records; the work is what its operators report.
#pragma once
#include <array>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/models/model.h"
#include "tessera/nn/context.h"
#include "tessera/ops/work.h"
#include "tessera/runtime/runtime_options.h"
#include "tessera/shard/domain.h"

namespace tessera::predict {

// Settings are those of a run.
struct DryOptions {
  models::BuildModel model;
  mesh::Mesh mesh;
  std::vector<shard::Domain> domains;
  int rank = 0;  // whose step it is
  shard::ParameterTypes types;
  bool sequence_parallel = false;
  nn::TokenSplit split;
  nn::BlockRecompute recompute;
  runtime::RuntimeOptions runtime;
  nn::ProductOptions products;
  schedule::StepKind kind = schedule::StepKind::train;
  std::int64_t sequences = 1, seq_len = 1;  // of a microbatch
};

struct DryStep {
  std::vector<shard::ParameterSpec> parameters;         // by id; backward weights behind the weights
  std::vector<schedule::ParameterId> backward_weights;  // by weight: its backward weight, or kNoParameter
  // Microbatches are alike, so one stands for all; and the optimizer's events behind the last.
  schedule::Trace microbatch, optimizer;
  std::vector<int> waits;  // by event of the microbatch, as runtime::DryRun has them
  // By event of the microbatch: what is computed before it. One more: behind the last.
  std::vector<std::vector<ops::Work>> work;
  // Of a microbatch: operations of its products with weights, and bytes that the program's collectives bring this rank.
  std::array<std::int64_t, quant::kFormats> flops{}, activations{};

  schedule::Trace trace(int microbatches) const;
};

// Errors: those of the model and of its parameters; all of whoever runs it later.
DryStep dry_step(const DryOptions& options);

}  // namespace tessera::predict
