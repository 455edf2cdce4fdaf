#include "tessera/run/transport.h"

namespace tessera::run {

std::string_view transport_of(const TrainConfig& config, const runtime::ScheduleStatistics& statistics) {
  if (config.backend != Backend::nccl || config.gtp == 1 || statistics.planned == 0) return "";
  return statistics.indirect.empty() ? "push" : "nccl";
}

std::string_view tp_transport_of(const TrainConfig& config, const runtime::ScheduleStatistics& statistics) {
  if (config.backend != Backend::nccl || !config.tp_overlap || statistics.planned == 0) return "";
  return statistics.tp_indirect.empty() ? "push" : "nccl";
}

}  // namespace tessera::run
