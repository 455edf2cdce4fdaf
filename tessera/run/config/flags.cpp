#include "tessera/run/config/flags.h"

#include <variant>

namespace tessera::run {

CLI::Option* add_flag(CLI::App& app, const Setting& setting, std::vector<std::string>& words) {
  CLI::Option* option = app.add_option(flag_of(setting.name), words, std::string(setting.help));
  if (std::holds_alternative<std::vector<std::string> TrainConfig::*>(setting.field))
    return option->expected(1, CLI::detail::expected_max_vector_size);
  if (std::holds_alternative<bool TrainConfig::*>(setting.field)) return option->expected(0, 1)->default_str("on");
  return option->expected(1);
}

}  // namespace tessera::run
