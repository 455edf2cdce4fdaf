// The activations that an autograd function keeps for its backward, as stashes of the program. Token ids and positions
// belong to the batch and are not stashed. If the function that produces a tensor and the function that reads it both
// save the tensor, it is an item of the reading function only.
#pragma once
#include <vector>

#include "tessera/nn/autograd.h"
#include "tessera/nn/pass_state.h"

namespace tessera::nn {

// Returns whether a backward will read the tensors that a function of `x` saves. Call this before apply(), since
// gradients are disabled inside the function.
bool is_kept(const at::Tensor& x);

// Returns an item for each defined tensor. The tensors must be dense in memory.
std::vector<runtime::StashItem> items_of(at::TensorList tensors);
// In forward: if `kept`, stashes the items and stores the id in `ctx`. The function keeps the memory of the items until
// backward. A function may have several stashes.
void stash(AutogradContext* ctx, const PassState& pass, bool kept, const std::vector<runtime::StashItem>& items,
           Tokens tokens);
// In backward, before the items are read: fetches a stash. `number` is the index of the stash in its function.
void fetch(AutogradContext* ctx, const PassState& pass, int number = 0);

}  // namespace tessera::nn
