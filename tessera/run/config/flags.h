// Settings as flags of a command line.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/run/config/settings.h"

namespace tessera::run {

// Adds the flags of all settings that the command takes. Their words go to `words`, which outlives `app`; words that
// stand there before are defaults. A flag of on|off may stand alone and then means on.
void add_flags(CLI::App& app, Command command, SettingWords& words);

// What is wrong with a command line, as the parser found it, with the flag's name.
std::string parse_error_text(const CLI::ParseError& error);
// Refuses a flag that stands where another flag expects its value.
void refuse_flags_as_values(const CLI::App& app);
// Refuses the first of the words that are neither flags nor values of flags. flags: those that the command has;
// command: "tessera train".
void refuse_extras(const std::vector<std::string>& extras, const std::vector<std::string>& flags,
                   std::string_view command);

// The setting's default as --help shows it, " [1]"; "" where it is empty or follows from other settings.
std::string default_text(const Setting& setting);

}  // namespace tessera::run
