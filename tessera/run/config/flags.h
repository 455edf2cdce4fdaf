// Settings as flags of a command line.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "tessera/run/config/settings.h"

namespace tessera::run {

// Adds the flags of all settings that the command takes. Their words go to `words`, which outlives `app`; words that
// stand there before are defaults. A flag of on|off may stand alone and then means on.
void add_flags(CLI::App& app, Command command, SettingWords& words);

// The setting's default as --help shows it, " [1]"; "" where it is empty or follows from other settings.
std::string default_text(const Setting& setting);

}  // namespace tessera::run
