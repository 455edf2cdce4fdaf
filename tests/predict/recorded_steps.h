// Records steps with a runtime, for the comparison with dry steps.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/decoder/tp_parts.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/predict/dry_step.h"
#include "tessera/runtime/watch/statistics.h"

namespace tessera::predict {

inline constexpr std::int64_t kSequences = 2, kLength = 7;  // together 14 tokens, which 3 tp ranks share unequally

// Returns a model whose sizes are not divisible by 2 or 3. With 3 tp ranks, several ranks read the same key/value head.
models::DecoderConfig odd_model(bool tied);

// A step on a mesh of tp, gtp and dp, which may have dead places.
struct Case {
  models::DecoderConfig config;
  int tp = 1, gtp = 1, dp = 1;
  int microbatches = 1;
  quant::DType dtype = quant::DType::fp32;
  quant::Format product = quant::Format::bf16;  // format of the matrices of the blocks
  nn::Fp8Scaling scaling = nn::Fp8Scaling::current;
  quant::Format tp_wire = quant::Format::bf16;
  std::int64_t chunks = nn::kAutomaticChunks;  // ProductOptions::tp_chunks
  bool overlap = false;                        // ProductOptions::tp_overlap
  shard::Lookup lookup = shard::Lookup::gather;
  std::optional<models::TpParts> parts = std::nullopt;
  nn::Recompute recompute = nn::Recompute::none;
  bool sequence_parallel = false;
  nn::TokenSplit split = {};
  schedule::StepKind kind = schedule::StepKind::train;
  std::optional<shard::FormatPolicy> backward = std::nullopt;
  std::vector<int> dead = {};
  std::optional<nn::ExpertDegrees> experts = std::nullopt;
};

// `it` must outlive the options.
DryOptions options_of(const Case& it, int rank);

// The trace that a runtime records up to the optimizer, and the runtime's statistics.
struct Recorded {
  schedule::Trace trace;
  runtime::StepStatistics statistics;
  std::int64_t staged_peak = 0;
};
Recorded recorded(comm::World& world, const Case& it);

// Expects that, on every rank, the dry step has the events, the flops and the bytes of the recorded step. Expects that
// the recorded step stages at most one gradient in addition to the gradients that are reduced at the end of the
// microbatch.
void compare(const Case& it);

}  // namespace tessera::predict
