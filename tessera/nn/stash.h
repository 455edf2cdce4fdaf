// The events of activations that an autograd function keeps for its backward. Token ids and positions belong to the
// batch and count nowhere; of a tensor that two functions save, the one that reads it counts it, not the one that made
// it.
#pragma once
#include "tessera/nn/autograd.h"
#include "tessera/nn/context.h"

namespace tessera::nn {

// Whether what a function of x saves is asked for again. Inside a function gradients are off: ask before apply().
bool is_kept(const at::Tensor& x);

// Undefined tensors count nothing.
std::int64_t kept_bytes(const variable_list& tensors);
// In forward, when `kept`: records one stash with these bytes and remembers it in ctx.
void stash(AutogradContext* ctx, Context& context, bool kept, std::int64_t bytes, Tokens tokens);
void stash(AutogradContext* ctx, Context& context, bool kept, const variable_list& tensors, Tokens tokens);
// In backward: records the fetch of what stash() remembered. number: which of the stashes of a function with several.
void fetch(AutogradContext* ctx, Context& context, int number = 0);

}  // namespace tessera::nn
