#include "tessera/settings/resolve/run_limits.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::settings {

void check_mesh_limits(const MeshSettings& mesh) {
  const std::int64_t dp = std::max<std::int64_t>(mesh.dp, 1), part = mesh.replica_places();
  if (part > kMaxRanks || part * dp > kMaxRanks)
    throw InputError("--tp {} * --gtp {} * --dp {}: a mesh of {} places, expected at most {}", mesh.tp, mesh.gtp, dp,
                     part * dp, kMaxRanks);
}

void check_microbatch_limits(const TrainConfig& config, const models::ModelSizes& sizes) {
  const std::int64_t tokens = config.micro_batch * config.seq_len;
  if (tokens > kMaxMicrobatchTokens)
    throw InputError("--micro-batch {} * --seq-len {}: a microbatch of {} tokens, expected at most {}",
                     config.micro_batch, config.seq_len, tokens, kMaxMicrobatchTokens);
  constexpr double kElementBytes = 8, kMost = 1e18;
  if (const double bytes = kElementBytes * static_cast<double>(tokens) * sizes.activations_per_token; bytes > kMost)
    throw InputError(
        "--micro-batch {} * --seq-len {}: the activations of model '{}' would have {:.3g} bytes, expected at most "
        "{:.0g}",
        config.micro_batch, config.seq_len, config.model, bytes, kMost);
}

}  // namespace tessera::settings
