// Records the activations that an autograd function keeps for its backward. Token ids and positions belong to the batch
// and are not counted. If the function that produces a tensor and the function that reads it both save the tensor, only
// the reading function counts its bytes.
#pragma once
#include "tessera/nn/autograd.h"
#include "tessera/nn/pass_state.h"

namespace tessera::nn {

// Returns whether a backward will read the tensors that a function of `x` saves. Call this before apply(), since
// gradients are disabled inside the function.
bool is_kept(const at::Tensor& x);

// Returns the bytes of the defined tensors.
std::int64_t kept_bytes(const variable_list& tensors);
// In forward: if `kept`, records one stash of these bytes and stores it in `ctx`.
void stash(AutogradContext* ctx, const PassState& pass, bool kept, std::int64_t bytes, Tokens tokens);
void stash(AutogradContext* ctx, const PassState& pass, bool kept, const variable_list& tensors, Tokens tokens);
// In backward: records the fetch of a stash. `number` is the index of the stash if one function has several.
void fetch(AutogradContext* ctx, const PassState& pass, int number = 0);

}  // namespace tessera::nn
