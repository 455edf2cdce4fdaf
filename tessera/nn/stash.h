// The events of activations that an autograd function keeps for its backward. Token ids and positions belong to the
// batch and count nowhere; a tensor that the next function reads and saves counts there.
#pragma once
#include "tessera/nn/autograd.h"
#include "tessera/nn/context.h"

namespace tessera::nn {

// Whether what a function of x saves is asked for again. Inside a function gradients are off: ask before apply().
bool is_kept(const at::Tensor& x);

// Which tokens the tensors of a call have: all of the microbatch, or the tp rank's own (split by sequence parallelism).
enum class Tokens : std::uint8_t { all, own };

// In forward, when `kept`: records one stash with the bytes of the tensors (undefined ones count nothing) and remembers
// it in ctx.
// more: bytes that are kept beside them.
void stash(AutogradContext* ctx, Context& context, bool kept, const variable_list& tensors, Tokens tokens,
           std::int64_t more = 0);
// In backward: records the fetch of what stash() remembered.
void fetch(AutogradContext* ctx, Context& context);

}  // namespace tessera::nn
