#include "tessera/settings/resolve/batch.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/settings/shares.h"

namespace tessera::settings {

shard::RowReads embedding_reads(const TrainConfig& config) {
  return {.per_microbatch = config.micro_batch * config.seq_len, .lookup = config.embedding};
}

std::int64_t one_microbatch(const TrainConfig& config, std::int64_t ranks) {
  const MeshSettings& mesh = config.mesh;
  return config.micro_batch * mesh.gtp *
         (mesh.dp > 0 ? mesh.dp : std::max<std::int64_t>(1, ranks / mesh.replica_places()));
}

void check_global_batch(const TrainConfig& config) {
  if (config.mesh.has_unused_places()) {
    batch_shape(config, {});
    return;
  }
  const std::int64_t blocks = config.micro_batch * config.mesh.gtp * config.mesh.dp;
  if (config.global_batch % blocks != 0)
    throw InputError("--global-batch: got {}, expected a multiple of --micro-batch {} * --gtp {} * --dp {} = {}",
                     config.global_batch, config.micro_batch, config.mesh.gtp, config.mesh.dp, blocks);
}

}  // namespace tessera::settings
