// Settings as flags of a command line.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tessera/run/config/settings.h"

namespace tessera::run {

// Adds the flag, whose words go to `words`, which outlives `app`. A flag of on|off may stand alone, and means on then.
CLI::Option* add_flag(CLI::App& app, const Setting& setting, std::vector<std::string>& words);

}  // namespace tessera::run
