// The settings of recomputation.
#pragma once
#include "tessera/settings/config.h"

namespace tessera::settings {

// Throws InputError if only one of --recompute auto and --activation-budget is given.
void check_recompute(const TrainConfig& config);

}  // namespace tessera::settings
