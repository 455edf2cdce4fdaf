// The largest values of settings that determine the sizes of lists, buffers and loops. Larger values are refused at
// once, by every command. Products of settings within these limits fit into 64 bits. models/size_limits.h has the
// limits of a model.
#pragma once
#include <cstdint>

#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

// Places of a mesh, and therefore ranks.
inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
// Ranks of a tp group. The plan follows every rank of a tp group, because its parts may differ. The largest NVLink
// domain has 576 GPUs.
inline constexpr std::int64_t kMaxTp = 1024;
// Tokens of a microbatch. The longest context of a published model is 10,485,760 tokens (Llama 4 Scout).
inline constexpr std::int64_t kMaxMicrobatchTokens = std::int64_t{1} << 26;

// Throws InputError for a mesh with more than kMaxRanks places. dp may be 0.
void check_mesh_limits(const MeshSettings& mesh);
// Throws InputError if a microbatch has more than kMaxMicrobatchTokens tokens, or if the bytes of its activations do
// not fit into 64 bits.
void check_microbatch_limits(const TrainConfig& config, const models::ModelSizes& sizes);

}  // namespace tessera::settings
