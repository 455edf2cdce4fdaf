#include "tessera/settings/transport.h"

namespace tessera::settings {

std::string_view transport_of(const ResolvedRun& run, const runtime::ScheduleStatistics& statistics) {
  if (run->backend != Backend::nccl || run->mesh.gtp == 1 || statistics.planned == 0) return "";
  return statistics.indirect.empty() ? "push" : "nccl";
}

std::string_view tp_transport_of(const ResolvedRun& run, const runtime::ScheduleStatistics& statistics) {
  if (run->backend != Backend::nccl || !run.overlaps_tp() || statistics.planned == 0) return "";
  return statistics.tp_indirect.empty() ? "push" : "nccl";
}

}  // namespace tessera::settings
