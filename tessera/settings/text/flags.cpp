#include "tessera/settings/text/flags.h"

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/settings/text/suggestion.h"

namespace tessera::settings {
namespace {

void add_flag(CLI::App& app, const Setting& setting, std::vector<std::string>& words, const std::string& help) {
  CLI::Option* option = app.add_option(flag_of(setting.name), words, help);
  option->option_text(std::string(setting.placeholder))->expected(1);
  const bool is_list = setting.field.is_list;
  if (is_list) option->expected(1, CLI::detail::expected_max_vector_size);
  // Only one word after a flag is its value, unless the setting is a list. A repeated flag is an error that names the
  // flag (set_from_text).
  option->allow_extra_args(is_list)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (setting.field.is_switch) option->expected(0, 1)->default_str("on");
}

// Returns whether the option has one of the types that CLI11 reads an empty text as 0 or as absent for.
bool is_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
}

// In commands other than train, the default batch is computed from the mesh (Use::plan).
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

std::string parse_error_text(const CLI::ParseError& error) {
  std::string text = error.what();
  constexpr std::string_view kNotConverted = "Could not convert: ", kValue = " = ";
  const std::size_t value = text.find(kValue);
  if (text.starts_with(kNotConverted) && value != std::string::npos)
    return fmt::format("{}: got \"{}\", expected a number",
                       text.substr(kNotConverted.size(), value - kNotConverted.size()),
                       text.substr(value + kValue.size()));
  if (error.get_name() != "ArgumentMismatch") return text;
  const std::string flag = text.substr(0, text.find(':'));
  return flag + (text.find("At Most") != std::string::npos ? ": expected one value; it is given more than once"
                                                           : ": expected a value after it");
}

void check_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& word : option->results()) {
      if (word.empty() && is_number(*option)) throw InputError("{}: got \"\", expected a number", option->get_name());
      if (word.starts_with("--"))
        throw InputError("{}: expected a value behind it, got the flag {}", option->get_name(),
                         word.substr(0, word.find('=')));
      if (const auto at = base::invalid_utf8(word))
        throw InputError(
            "{}: got '{}', expected UTF-8: byte {} is not; rename the file or the folder if this is a path",
            option->get_name(), word, *at + 1);
    }
}

void refuse_extras(const std::vector<std::string>& extras, const std::vector<std::string>& flags,
                   std::string_view command) {
  if (extras.empty()) return;
  const std::string& word = extras.front();
  if (!word.starts_with('-')) throw InputError("unexpected word '{}': expected a flag (see {} --help)", word, command);
  const std::string flag = word.substr(0, word.find('='));
  const std::string meant = suggestion(flag, flags);
  throw InputError("unknown flag {}{}", flag, meant.empty() ? fmt::format(" (see {} --help)", command) : meant);
}

std::string default_text(const Setting& setting) {
  const nlohmann::json value = value_of(TrainConfig{}, setting);
  if (value.is_null()) return "";
  if (value.is_boolean()) return value == true ? " [on]" : " [off]";
  return " [" + (value.is_string() ? value.get<std::string>() : value.dump()) + "]";
}

}  // namespace tessera::settings
