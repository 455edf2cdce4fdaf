// A check of the number formats of weights.
#pragma once
#include "tessera/settings/config.h"
#include "tessera/shard/formats/format_table.h"

namespace tessera::settings {

// Throws InputError if a flag chooses a number format that no weight of the model has.
void check_formats_have_weights(const TrainConfig& config, const shard::FormatTable& table);

}  // namespace tessera::settings
