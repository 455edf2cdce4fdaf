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
  Recompute recompute = Recompute::none;
  shard::StepKind kind = shard::StepKind::train;
  int microbatches = 1;
  std::int64_t tokens = 1;  // of a microbatch: sequences * seq_len
  base::DType dtype = base::DType::fp32;
};

// Parameter ids are llama_ids(config). Every parameter is trainable; a training step publishes them in the order of
// their first consume. Pure.
shard::Trace llama_trace(const LlamaConfig& config, const LlamaTraceOptions& options);

}  // namespace tessera::nn
