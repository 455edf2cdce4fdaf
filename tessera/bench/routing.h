// The distribution of tokens over experts in a benchmark.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// even: all experts are chosen nearly equally often. skewed: some experts are chosen by about half of the tokens, and
// most experts by few.
enum class Routing : std::uint8_t { even, skewed };

// Changes the initial values of a model with experts, so that a benchmark with random tokens has the load `routing`.
// Called after the initial values are set. Collective.
// Multiplies the embeddings by 1000. With the usual initial values, attention averages over many tokens, so that the
// hidden states of all tokens become nearly equal after a few blocks, and all tokens choose the same experts. With
// large embeddings, each hidden state stays close to the embedding of its token, and the choices are independent.
// skewed: also multiplies row e of every router's weight by 1 / (e + 1), so that the logits of the first experts have
// the largest variance.
void set_routing(runtime::Runtime& runtime, Routing routing);

// Returns the load of the busiest expert: the largest count of a layer, divided by the mean count of the layer, as the
// maximum over layers. `counts` contains `experts` counts for each layer.
double expert_load(std::span<const std::int64_t> counts, std::int64_t experts);

}  // namespace tessera::bench
