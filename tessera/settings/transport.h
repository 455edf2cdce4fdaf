// How GPUs exchange weights and gradients over gtp, and activations over tp.
#pragma once
#include <string_view>

#include "tessera/runtime/runtime.h"
#include "tessera/settings/resolved_run.h"

namespace tessera::settings {

// Returns "push" if all GPUs of a group write into each other's memory. Returns "nccl" if some GPUs do not;
// statistics.indirect has the reason. Returns "" if weights are not sharded over gtp, if ranks are not on GPUs, and
// before a schedule is planned.
std::string_view transport_of(const ResolvedRun& run, const runtime::ScheduleStatistics& statistics);
// Returns the transport of activations that tp ranks exchange in pieces: "push" or "nccl", as for transport_of. Returns
// "" without --tp-overlap, if ranks are not on GPUs, and before a schedule is planned.
std::string_view tp_transport_of(const ResolvedRun& run, const runtime::ScheduleStatistics& statistics);

}  // namespace tessera::settings
