#include "tessera/settings/text/parse.h"

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/text/printable.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/text/flags.h"
#include "tessera/settings/text/suggestion.h"

namespace tessera::settings {
namespace {
using nlohmann::json;

void add_reserved_flags(CLI::App& app, SettingWords& words) {
  for (const ReservedSetting& setting : reserved_settings()) {
    const std::string name(setting.name);
    app.add_option(flag_of(name), words[name])->expected(1);
  }
}

std::vector<std::string> all_flags() {
  std::vector<std::string> flags{"--config", "--help"};
  for (const Setting& setting : settings()) flags.push_back(flag_of(setting.name));
  for (const ReservedSetting& setting : reserved_settings()) flags.push_back(flag_of(setting.name));
  return flags;
}

void check_reserved_flags(const SettingWords& words) {
  for (const auto& [name, given] : words)
    if (!given.empty()) check_reserved(*find_reserved(name), given.front(), flag_of(name));
}

// Throws InputError for JSON files of other kinds that a user may pass by mistake.
void refuse_other_kinds(const json& content, const std::string& file) {
  if (!content.is_object()) return;
  if (content.contains("config") && content.contains("model"))
    throw InputError(
        "{}: is the config.json of a run, expected a file of settings, such as its key 'config' (--resume "
        "continues that run)",
        file);
  if (content.contains("model_type") || content.contains("architectures"))
    throw InputError("{}: describes a model, expected a file of settings (--model {} trains it)", file, file);
}

void apply_file(TrainConfig& config, const std::string& file) {
  try {
    const json content = base::read_json_file(file);
    refuse_other_kinds(content, file);
    apply_json(config, content, file);
  } catch (const InputError& error) {
    throw InputError("--config: {}", error.what());
  }
}

}  // namespace

void apply_json(TrainConfig& config, const json& settings_object, const std::string& where) {
  if (!settings_object.is_object())
    throw InputError("{}: is {}, expected a JSON object of settings", where, base::shown(settings_object));
  for (const auto& [key, value] : settings_object.items()) {
    const std::string place = fmt::format("{}: key '{}'", where, base::excerpt(key));
    const Setting* setting = find_setting(key);
    const ReservedSetting* reserved = find_reserved(key);
    if (!setting && !reserved) {
      std::vector<std::string> names;
      for (const Setting& known : settings()) names.emplace_back(known.name);
      throw InputError("{}: unknown key '{}'{}", where, base::excerpt(key), suggestion(key, names));
    }
    if (value.is_null()) continue;
    if (setting) set_from_json(config, *setting, value, place);
    if (reserved) check_reserved(*reserved, value, place);
  }
}

TrainCommand parse_train_flags(const std::vector<std::string>& flags) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  SettingWords words, reserved;
  std::string file;
  bool help = false;
  app.add_flag("--help,-h", help);
  auto* file_option = app.add_option("--config", file);
  add_flags(app, Command::train, words);
  add_reserved_flags(app, reserved);
  try {
    app.parse(std::vector<std::string>(flags.rbegin(), flags.rend()));
  } catch (const CLI::ParseError& error) {
    throw InputError("{} (see tessera train --help)", parse_error_text(error));
  }
  TrainCommand command{.help = help, .config = {}};
  if (help) return command;
  check_values(app);
  refuse_extras(app.remaining(), all_flags(), "tessera train");
  if (file_option->count() > 0) apply_file(command.config, file);
  set_from_words(command.config, words);
  check_reserved_flags(reserved);
  return command;
}

std::string train_help() {
  std::string text = "tessera train: trains a model.\n\n";
  for (const Setting& setting : settings())
    text += fmt::format("  {:<44} {}{}\n", fmt::format("{} {}", flag_of(setting.name), setting.placeholder),
                        setting.help, default_text(setting));
  text += fmt::format("  {:<44} {}\n", "--config FILE",
                      "the same settings as JSON, with underscores for dashes (micro_batch); flags override it");
  text +=
      "\n--model, --data, --steps and --out have no default and must be given; with --resume, all but --out may come\n"
      "from the checkpoint. --ranks, --tp, --gtp, --dp, --etp, --ep and --egtp also come from it; if one of them is\n"
      "given, only flags count. Otherwise the unused places (--dead, --idle, --tp-spares, --reduced-batch) also come\n"
      "from it, each unless it is given.\n"
      "An on|off flag without a value means on. Not built yet:";
  for (const ReservedSetting& setting : reserved_settings()) text += " " + flag_of(setting.name);
  return text + ".\n";
}

}  // namespace tessera::settings
