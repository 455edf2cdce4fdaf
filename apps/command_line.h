// Parses a subcommand's arguments and reports errors as InputError.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tessera::apps {

// Returns false after printing the help if --help is given. Throws InputError with the parser's reason on errors.
bool parse(CLI::App& app, const std::vector<std::string>& arguments);
// Prints lines with warnings on stderr. If a launcher started several processes, only the first prints.
void print_warnings(const std::vector<std::string>& warnings);
// Throws InputError if the flag is given with an empty text, for example from a variable of a script that is not set.
void check_file(const std::string& flag, const CLI::App& app);
// Throws InputError if `file` cannot be written because its folder does not exist or a folder has that name. Called
// before the work whose result goes into the file. Does nothing if `file` is empty.
void check_output(const std::string& flag, const std::string& file);

}  // namespace tessera::apps
