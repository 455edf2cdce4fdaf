#include "tessera/train/transport.h"

namespace tessera::train {

std::string_view transport_of(const TrainConfig& config, const shard::ScheduleStatistics& statistics) {
  if (config.backend != Backend::nccl || config.gtp == 1 || statistics.planned == 0) return "";
  return statistics.indirect.empty() ? "push" : "nccl";
}

}  // namespace tessera::train
