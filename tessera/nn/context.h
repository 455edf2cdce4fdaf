// What the modules of one model on one rank share.
#pragma once
#include "tessera/nn/delayed_scales.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/token_split.h"
#include "tessera/runtime/program.h"

namespace tessera::nn {

// Which tokens the tensors of a call have: all of the microbatch, or the tp rank's own (split by sequence parallelism).
enum class Tokens : std::uint8_t { all, own };

// One thread. `program` outlives every module and every graph made with it.
struct Context {
  runtime::Program& program;
  bool sequence_parallel = false;  // activations between blocks are split by tokens over tp
  BlockRecompute recompute;
  Recompute policy = Recompute::none;             // of the block that runs
  schedule::Pass pass = schedule::Pass::forward;  // recompute: a block's forward runs again
  ProductOptions products;                        // of those in number formats
  DelayedScales* scales = nullptr;                // null: scales are those of the matrices themselves
  TokenSplit split = {};                          // of tokens over tp, under sequence parallelism

  int tp_rank() const { return program.group_rank(); }
  int tp_size() const { return program.group_size(); }
  // How many of a microbatch's tokens a tp rank has under sequence parallelism.
  std::int64_t tokens_of(int rank, std::int64_t tokens) const { return split.part(tokens, rank, tp_size()).size(); }
};

}  // namespace tessera::nn
