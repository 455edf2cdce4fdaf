// One rank's part of a run: the model, its runtime and its optimizer, and what a step does with them. Knows nothing of
// files of samples, flags or metrics: the loop feeds it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/nn/llama.h"
#include "tessera/shard/runtime.h"
#include "tessera/train/gradient_norm.h"
#include "tessera/train/optimizer.h"

namespace tessera::train {

struct TrainerOptions {
  nn::LlamaConfig model;
  int tp = 1, gtp = 1, dp = 1;
  shard::ParameterTypes types;
  bool sequence_parallel = false;
  nn::BlockRecompute recompute;
  std::int64_t seq_len = 0;
  shard::RowReads embedding;  // tokens of a microbatch at most; by default its table is gathered
  ops::AdamW adamw;
  double clip = 1.0;
  shard::RuntimeOptions runtime;
};

// A step's samples as this rank sees them.
struct StepInput {
  int microbatches = 1;                            // the same on every rank
  std::int64_t tokens = 0;                         // unmasked targets of the whole step, over all ranks
  std::function<nn::Batch(int microbatch)> batch;  // this rank's block of a microbatch
};

struct StepResult {
  double loss = 0;       // mean over the step's tokens, before the update; the same on every rank
  double grad_norm = 0;  // before clipping; the same on every rank
  bool skipped = false;  // the norm was not finite: nothing was updated, on any rank
  shard::StepStatistics statistics;
  double host_seconds = 0;  // until the host had nothing more to do but wait for the device; on a CPU, the step
};

class Trainer {
 public:
  // Collective over the world: makes the groups. `world` outlives the trainer.
  Trainer(comm::World& world, const TrainerOptions& options);

  // Forward and backward of every microbatch, reduction, norm, clipping, AdamW. Collective.
  StepResult train_step(const StepInput& input, double lr);
  // Mean loss over the input's tokens; changes nothing. Collective.
  double evaluate(const StepInput& input);

  shard::Runtime& runtime() { return runtime_; }
  Optimizer& optimizer() { return optimizer_; }
  shard::Parallel& parallel() { return parallel_; }

 private:
  nn::Batch on_device(nn::Batch batch) const;
  double sum_losses(const std::vector<at::Tensor>& losses);

  TrainerOptions options_;
  shard::Parallel parallel_;
  shard::Runtime runtime_;
  nn::Context context_;
  nn::Llama model_;
  Optimizer optimizer_;
  GradientNorm norm_;
};

}  // namespace tessera::train
