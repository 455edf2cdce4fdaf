#include "command_line.h"

#include <fmt/format.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/settings/text/flags.h"

namespace tessera::apps {

bool parse(CLI::App& app, const std::vector<std::string>& arguments) {
  app.allow_extras();
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw InputError("{} (see {} --help)", settings::parse_error_text(error), app.get_name());
  }
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  settings::check_values(app);
  settings::refuse_extras(app.remaining(), flags, app.get_name());
  return true;
}

void check_file(const std::string& flag, const CLI::App& app) {
  const CLI::Option* option = app.get_option(flag);
  if (option->count() > 0 && option->results().front().empty()) throw InputError("{}: got \"\", expected a path", flag);
}

void print_warnings(const std::vector<std::string>& warnings) {
  if (warnings.empty() || rendezvous::read_ranks(rendezvous::own_variables()).rank > 0) return;
  for (const std::string& warning : warnings) fmt::print(stderr, "tessera: warning: {}\n", warning);
}

void check_output(const std::string& flag, const std::string& file) {
  if (file.empty()) return;
  const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  if (!std::filesystem::is_directory(folder))
    throw InputError("{}: got {}, expected a file in an existing folder: {} is not a folder", flag, file,
                     folder.string());
  if (std::filesystem::is_directory(file))
    throw InputError("{}: got {}, which is a folder, expected a file", flag, file);
}

}  // namespace tessera::apps
