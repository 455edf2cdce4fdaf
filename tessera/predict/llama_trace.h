// The events of a step of a Llama, without running it: what its runtime records on one rank, event for event.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/models/decoder_config.h"
#include "tessera/models/decoder_layouts.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/token_split.h"
#include "tessera/predict/planned_parameters.h"
#include "tessera/quant/dtype.h"
#include "tessera/schedule/events.h"

namespace tessera::predict {

struct LlamaTraceOptions {
  int tp_size = 1, tp_rank = 0;  // whose bytes of activations
  bool sequence_parallel = false;
  nn::TokenSplit split;                  // of tokens over tp, under sequence parallelism
  std::optional<models::TpParts> parts;  // of the tp ranks; without, all is even
  nn::BlockRecompute recompute;
  schedule::StepKind kind = schedule::StepKind::train;
  int microbatches = 1;
  std::int64_t tokens = 1;  // of a microbatch: sequences * seq_len
  int row_ranks = 1;        // gtp ranks between which the embedding's rows travel; 1: its table is gathered
  quant::DType dtype = quant::DType::fp32;
  // By parameter id, where several ranks take the amaxes of whole weights together; else empty.
  std::vector<PlannedCast> casts;
  std::vector<quant::Format> products;  // by parameter id; empty: all are bf16
  bool delayed_scaling = false;         // of fp8 products: the step's amaxes travel before the optimizer's
};

// Parameter ids are decoder_ids(config). Every parameter is trainable; a training step publishes them in the order of
// their first use, each bucket of the optimizer after the message of its amaxes, if it needs one. Pure.
schedule::Trace llama_trace(const models::DecoderConfig& config, const LlamaTraceOptions& options);

}  // namespace tessera::predict
