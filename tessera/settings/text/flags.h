// Makes the flags of a command line from the table of settings.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/settings/settings.h"

namespace tessera::settings {

// Adds the flags of all settings that the command takes. `app` stores parsed words in `words`, which must outlive
// `app`. Words that `words` already contains are defaults. An on|off flag without a value means on.
void add_flags(CLI::App& app, Command command, SettingWords& words);

// Returns the parser's error as a message with the flag's name.
std::string parse_error_text(const CLI::ParseError& error);
// Checks all parsed values. Throws InputError, which names the flag, if:
// - the value of a flag is missing and the next word is another flag;
// - a number is an empty text, which the parser reads as 0 or as an absent flag;
// - a value is not UTF-8. JSON, SVG and the files of a run cannot hold a path with such bytes.
void check_values(const CLI::App& app);
// Throws InputError for the first word of `extras`. `extras` are the words that are neither flags nor values of flags.
// `flags` are the flags of the command. `command` is for example "tessera train".
void refuse_extras(const std::vector<std::string>& extras, const std::vector<std::string>& flags,
                   std::string_view command);

// Returns the setting's default as --help shows it, such as " [1]". Returns "" if the default is empty or follows from
// other settings.
std::string default_text(const Setting& setting);

}  // namespace tessera::settings
