#include "tessera/settings/resolve/tp_tokens.h"

#include <charconv>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/nn/parallel/token_chunks.h"
#include "tessera/quant/dtype.h"

namespace tessera::settings {

bool has_long_pieces(const TrainConfig& config, const models::ModelSizes& sizes) {
  constexpr double kBytes = 1.5 * (1 << 20);
  const double piece = static_cast<double>(config.micro_batch) * static_cast<double>(config.seq_len) *
                       static_cast<double>(sizes.hidden_size) * static_cast<double>(quant::size_of(config.dtype)) /
                       static_cast<double>(config.mesh.tp);
  return config.mesh.tp <= 2 || piece >= static_cast<double>(config.mesh.tp - 1) * kBytes;
}

std::int64_t tp_chunks_of(const TrainConfig& config) {
  if (config.tp_chunks == "auto") return nn::kAutomaticChunks;
  std::int64_t chunks = 0;
  const char* end = config.tp_chunks.data() + config.tp_chunks.size();
  const auto [next, error] = std::from_chars(config.tp_chunks.data(), end, chunks);
  if (error != std::errc() || next != end || chunks < 1)
    throw InputError("--tp-chunks: got {}, expected auto or a number above 0", base::excerpt(config.tp_chunks));
  return chunks;
}

void check_tp_tokens(const TrainConfig& config) {
  const std::int64_t chunks = tp_chunks_of(config);
  if (splits_tokens(config)) return;
  if (chunks != nn::kAutomaticChunks)
    throw InputError("--tp-chunks: got {}, expected it with --tp above 1 and --sequence-parallel on", config.tp_chunks);
  if (config.tp_overlap.value_or(false))
    throw InputError("--tp-overlap: got on, expected it with --tp above 1 and --sequence-parallel on");
}

}  // namespace tessera::settings
