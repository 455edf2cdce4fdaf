// Settings as flags of a command line.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/run/config/settings.h"

namespace tessera::run {

// Adds the flags of all settings that the command takes. Parsed words are stored in `words`, which must outlive `app`;
// words that `words` already holds are defaults. An on|off flag without a value means on.
void add_flags(CLI::App& app, Command command, SettingWords& words);

// Returns the parser's error as a message with the flag's name.
std::string parse_error_text(const CLI::ParseError& error);
// Throws InputError for a flag that stands in the place of another flag's value.
void refuse_flags_as_values(const CLI::App& app);
// Throws InputError for the first word of `extras`, the words that are neither flags nor values of flags. `flags`: the
// flags that the command has. `command`: for example "tessera train".
void refuse_extras(const std::vector<std::string>& extras, const std::vector<std::string>& flags,
                   std::string_view command);

// Returns the setting's default for --help, such as " [1]"; "" if the default is empty or follows from other settings.
std::string default_text(const Setting& setting);

}  // namespace tessera::run
