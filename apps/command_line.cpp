#include "command_line.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::apps {

bool parse(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw InputError("{}: {}", app.get_name(), error.what());
  }
  return true;
}

}  // namespace tessera::apps
