// What moves weights and gradients between GPUs that share them out.
#pragma once
#include <string_view>

#include "tessera/run/config/config.h"
#include "tessera/runtime/runtime.h"

namespace tessera::run {

// "push" where GPUs write into each other's memory, "nccl" where some do not (statistics.indirect says why), "" where
// nothing is shared out over gtp, or not by GPUs, and before a schedule is planned.
std::string_view transport_of(const TrainConfig& config, const runtime::ScheduleStatistics& statistics);

}  // namespace tessera::run
