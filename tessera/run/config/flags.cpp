#include "tessera/run/config/flags.h"

#include <variant>

namespace tessera::run {
namespace {

void add_flag(CLI::App& app, const Setting& setting, std::vector<std::string>& words, const std::string& help) {
  CLI::Option* option = app.add_option(flag_of(setting.name), words, help);
  option->option_text(std::string(setting.placeholder))->expected(1);
  if (std::holds_alternative<std::vector<std::string> TrainConfig::*>(setting.field))
    option->expected(1, CLI::detail::expected_max_vector_size);
  if (std::holds_alternative<bool TrainConfig::*>(setting.field)) option->expected(0, 1)->default_str("on");
}

// Outside of training the batch follows from the mesh (resolve_plan_config).
std::string default_for(Command command, const Setting& setting, const std::vector<std::string>& words) {
  if (!words.empty()) return " [" + words.front() + "]";
  if (command != Command::train && setting.name == "global_batch") return " (default: one microbatch a step)";
  return default_text(setting);
}

}  // namespace

void add_flags(CLI::App& app, Command command, SettingWords& words) {
  for (const Setting* setting : settings_of(command)) {
    std::vector<std::string>& own = words[std::string(setting->name)];
    add_flag(app, *setting, own, std::string(setting->help) + default_for(command, *setting, own));
  }
}

std::string default_text(const Setting& setting) {
  const nlohmann::json value = value_of(TrainConfig{}, setting);
  if (value.is_null()) return "";
  if (value.is_boolean()) return value == true ? " [on]" : " [off]";
  return " [" + (value.is_string() ? value.get<std::string>() : value.dump()) + "]";
}

}  // namespace tessera::run
