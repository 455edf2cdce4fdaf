// Prints how a run continues without some of its ranks, and writes resume-without.json to the run's folder.
#pragma once
#include <vector>

#include "tessera/run/run_setup.h"

namespace tessera::run {

// Prints lost_ranks_text (lost_ranks.h) for ranks that have ended.
void report_lost(const RunSetup& setup, const std::vector<int>& ranks);
// Prints continuation_text (lost_ranks.h) for ranks that hang.
void report_continuation(const RunSetup& setup, const std::vector<int>& ranks);

}  // namespace tessera::run
