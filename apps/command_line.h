// Parsing a subcommand's arguments with our errors.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tessera::apps {

// False when --help was asked for (and printed). InputError with the parser's reason otherwise.
bool parse(CLI::App& app, const std::vector<std::string>& arguments);
// Before the work whose result goes into that file; nothing for an empty name. InputError where it cannot be written:
// no such folder, a folder of that name.
void check_output(const std::string& flag, const std::string& file);

}  // namespace tessera::apps
