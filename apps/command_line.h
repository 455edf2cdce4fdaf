// Parsing a subcommand's arguments with our errors.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tessera::apps {

// False when --help was asked for (and printed). InputError with the parser's reason otherwise.
bool parse(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace tessera::apps
