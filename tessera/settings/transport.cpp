#include "tessera/settings/transport.h"

#include "tessera/settings/checks/tp_tokens.h"

namespace tessera::settings {

std::string_view transport_of(const TrainConfig& config, const runtime::ScheduleStatistics& statistics) {
  if (config.backend != Backend::nccl || config.gtp == 1 || statistics.planned == 0) return "";
  return statistics.indirect.empty() ? "push" : "nccl";
}

std::string_view tp_transport_of(const TrainConfig& config, const runtime::ScheduleStatistics& statistics) {
  if (config.backend != Backend::nccl || !overlaps_tp(config) || statistics.planned == 0) return "";
  return statistics.tp_indirect.empty() ? "push" : "nccl";
}

}  // namespace tessera::settings
