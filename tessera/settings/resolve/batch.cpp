#include "tessera/settings/resolve/batch.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::settings {

shard::RowReads embedding_reads(const TrainConfig& config) {
  return {.per_microbatch = config.micro_batch * config.seq_len, .lookup = config.embedding};
}

std::int64_t one_microbatch(const TrainConfig& config, std::int64_t ranks) {
  const std::int64_t part = config.tp * config.gtp;
  return config.micro_batch * config.gtp * (config.dp > 0 ? config.dp : std::max<std::int64_t>(1, ranks / part));
}

void check_global_batch(const TrainConfig& config) {
  const std::int64_t blocks = config.micro_batch * config.gtp * config.dp;
  if (config.global_batch % blocks != 0)
    throw InputError("--global-batch: got {}, expected a multiple of --micro-batch {} * --gtp {} * --dp {} = {}",
                     config.global_batch, config.micro_batch, config.gtp, config.dp, blocks);
}

}  // namespace tessera::settings
