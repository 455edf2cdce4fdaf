// Steps of small tensor-parallel models whose tokens travel in pieces, for tests of the checker.
#pragma once
#include "tessera/schedule/events.h"

namespace tessera::schedule::piece_steps {

// The number of bytes that each rank contributes to each transfer.
inline constexpr std::int64_t kPart = 4;

// Returns the events of one rank in a training step. A microbatch has `layers` pairs of a column layer and a row layer.
// The column layer of pair i has the weight 2i, and the row layer has the weight 2i + 1. Ranges of the transfer arena
// are assigned first fit.
Trace step(int ranks, int layers, int microbatches);

// Executes a step on rank 0 and checks each byte that products and sums read. Each piece arrives at a random event
// between its beginning and its need event; `seed` selects the events. Seed 0: each piece arrives as early as possible.
// Seed 1: as late as possible. Pieces arrive in the order in which they were begun. Returns a description of the first
// wrong result, or an empty text. Uses no code of the checker. `right` is the step before it was damaged: it defines
// which work must happen before a piece is begun.
std::string wrong_result(const Trace& step, const Trace& right, int ranks, std::uint64_t seed);

}  // namespace tessera::schedule::piece_steps
