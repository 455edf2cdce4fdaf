// Records the activations that an autograd function keeps for its backward. Token ids and positions belong to the batch
// and are not counted. If two functions save a tensor, the reader of the tensor counts it, not its producer.
#pragma once
#include "tessera/nn/autograd.h"
#include "tessera/nn/context.h"

namespace tessera::nn {

// Returns whether the saved tensors of a function of `x` will be read by a backward. Call this before apply(), since
// gradients are disabled inside the function.
bool is_kept(const at::Tensor& x);

// Returns the bytes of the defined tensors.
std::int64_t kept_bytes(const variable_list& tensors);
// In forward: if `kept`, records one stash of these bytes and stores it in `ctx`.
void stash(AutogradContext* ctx, Context& context, bool kept, std::int64_t bytes, Tokens tokens);
void stash(AutogradContext* ctx, Context& context, bool kept, const variable_list& tensors, Tokens tokens);
// In backward: records the fetch of a stash. `number` selects among several stashes of one function.
void fetch(AutogradContext* ctx, Context& context, int number = 0);

}  // namespace tessera::nn
