// Whether tp ranks divide the tokens of activations among themselves, and how these tokens travel.
#pragma once
#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

// Returns whether the tp ranks divide the tokens (--sequence-parallel).
inline bool splits_tokens(const TrainConfig& config) {
  return config.mesh.tp > 1 && config.sequence_parallel.value_or(true);
}
// Returns whether pieces of tokens are long enough to travel beside products by default.
// A transfer over t ranks has t - 1 pieces, which follow each other, and each piece costs a latency. A piece is the
// tokens of a rank in a microbatch: micro_batch * seq_len / t * hidden_size numbers. With tp 2 a transfer has one
// piece, and the result is true. With more ranks, a piece needs at least (t - 1) * 1.5 MiB. The limit was fitted to
// predictions of `tessera plan` on H200 (docs/performance.md).
bool has_long_pieces(const TrainConfig& config, const models::ModelSizes& sizes);
// Returns whether these tokens travel in pieces beside products (--tp-overlap).
inline bool overlaps_tp(const TrainConfig& config, bool has_long_pieces) {
  return splits_tokens(config) && config.tp_overlap.value_or(has_long_pieces);
}
// Returns the largest number of chunks of a product (nn::ProductOptions::tp_chunks). Throws InputError if --tp-chunks
// is neither auto nor a positive number.
std::int64_t tp_chunks_of(const TrainConfig& config);
// Throws InputError for --tp-chunks or --tp-overlap on if tp ranks do not divide tokens, and the error of tp_chunks_of.
void check_tp_tokens(const TrainConfig& config);

}  // namespace tessera::settings
