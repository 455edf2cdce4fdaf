// The state that the modules of one model share on one rank.
#pragma once
#include "tessera/nn/delayed_scales.h"
#include "tessera/nn/experts/expert_room.h"
#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/random_state.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/token_split.h"
#include "tessera/runtime/program.h"

namespace tessera::nn {

// The tokens of a tensor: all tokens of the microbatch, or only this tp rank's tokens (sequence parallelism).
enum class Tokens : std::uint8_t { all, own };

// Used by one thread. `program` must outlive every module and every graph that uses this context.
struct Context {
  runtime::Program& program;
  bool sequence_parallel = false;  // whether the tp ranks divide the tokens of activations between blocks
  BlockRecompute recompute;
  Recompute policy = Recompute::none;             // policy of the block that is running
  schedule::Pass pass = schedule::Pass::forward;  // current pass; recompute: a block's forward runs again
  ProductOptions products;                        // options of the matrix products of layers
  DelayedScales* scales = nullptr;                // null: each matrix uses its own amax
  TokenSplit split = {};                    // distribution of tokens over the tp ranks, under sequence parallelism
  DropoutOptions dropout = {};              // probabilities of dropout
  RandomState random = {};                  // random numbers of the microbatch that is running
  const ExpertRoom* expert_room = nullptr;  // null: the memory has room for the rows of any choices

  // Returns whether activations have collectives over tp.
  bool has_tp() const { return program.nominal_size() > 1; }
  int tp_rank() const { return program.group_rank(); }
  int tp_size() const { return program.group_size(); }
  // Returns this rank's own tokens of a microbatch: the tokens that the rank holds between blocks.
  layout::Range own_tokens(std::int64_t tokens) const {
    if (!sequence_parallel || !has_tp()) return {.begin = 0, .end = tokens};
    return split.part(tokens, tp_rank(), tp_size());
  }
  // Returns the number of a microbatch's tokens that tp rank `rank` holds under sequence parallelism.
  std::int64_t tokens_of(int rank, std::int64_t tokens) const { return split.part(tokens, rank, tp_size()).size(); }
};

}  // namespace tessera::nn
