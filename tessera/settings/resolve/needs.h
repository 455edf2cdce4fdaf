// The settings that other settings leave without an effect.
#pragma once
#include "tessera/settings/settings.h"

namespace tessera::settings {

// Returns whether the other settings leave the setting without an effect (Setting::needs).
bool is_without_meaning(const TrainConfig& config, const Setting& setting);

}  // namespace tessera::settings
