#include "tessera/settings/resolve/recompute_checks.h"

#include "tessera/base/error.h"

namespace tessera::settings {

void check_recompute(const TrainConfig& config) {
  const bool chooses = config.recompute == RecomputeSetting::automatic;
  if (chooses && config.activation_budget.empty())
    throw InputError("--activation-budget is missing: --recompute auto needs it, for example 20GB");
  if (!chooses && !config.activation_budget.empty())
    throw InputError("--activation-budget: got {} with --recompute {}, expected it with auto",
                     config.activation_budget.text, name_of(config.recompute));
}

}  // namespace tessera::settings
