// The state of one pass of one microbatch. Modules receive the state as an argument, and autograd functions keep a copy
// for backward. Several microbatches may therefore be open at once.
#pragma once
#include "tessera/nn/context.h"
#include "tessera/nn/random_state.h"

namespace tessera::nn {

// A small value. The context must outlive it.
struct PassState {
  const Context& context;
  schedule::PassId id;
  Recompute policy = Recompute::none;  // policy of the block that is running
  RandomState random = {};             // random numbers of the microbatch

  // Return the state of another pass of the microbatch, or of a block with another policy.
  PassState in(schedule::Pass pass) const {
    PassState other = *this;
    other.id.pass = pass;
    return other;
  }
  PassState with(Recompute block) const {
    PassState other = *this;
    other.policy = block;
    return other;
  }
};

}  // namespace tessera::nn
