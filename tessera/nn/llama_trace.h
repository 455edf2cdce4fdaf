// The events of a step of a Llama, without running it: what its runtime records on one rank, event for event.
#pragma once
#include <cstdint>

#include "tessera/base/dtype.h"
#include "tessera/nn/llama_config.h"
#include "tessera/nn/recompute.h"
#include "tessera/shard/events.h"

namespace tessera::nn {

struct LlamaTraceOptions {
  int tp_size = 1, tp_rank = 0;  // whose bytes of activations
  bool sequence_parallel = false;
  BlockRecompute recompute;
  shard::StepKind kind = shard::StepKind::train;
  int microbatches = 1;
  std::int64_t tokens = 1;  // of a microbatch: sequences * seq_len
  int row_ranks = 1;        // gtp ranks between which the embedding's rows travel; 1: its table is gathered
  base::DType dtype = base::DType::fp32;
};

// Parameter ids are llama_ids(config). Every parameter is trainable; a training step publishes them in the order of
// their first use. Pure.
shard::Trace llama_trace(const LlamaConfig& config, const LlamaTraceOptions& options);

}  // namespace tessera::nn
