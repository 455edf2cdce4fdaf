// The table of all settings. It defines the flags of the command line, the keys of the --config file and of
// config.json, and the checks of values.
#pragma once
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/settings/config.h"

namespace tessera::settings {

// The valid values: low <= value <= high. If open_low is set, `low` itself is not valid; if open_high is set, `high` is
// not valid. A default below the range means that the value follows from other settings.
struct Limits {
  double low = -std::numeric_limits<double>::max(), high = std::numeric_limits<double>::max();
  bool open_low = false, open_high = false;
};

// Where a value comes from, for its checks and messages.
struct Place {
  const Limits& range;
  const std::string& where;  // "--lr" or "FILE: key 'lr'"
  bool may_be_empty = false;
};

// Access to one value of TrainConfig. Made by field() in text/values.h.
struct Field {
  // Reads the value from JSON. Throws InputError for a wrong type, word or range.
  void (*put)(TrainConfig& to, const nlohmann::json& value, const Place& at);
  nlohmann::json (*get)(const TrainConfig& from);
  void (*copy)(TrainConfig& to, const TrainConfig& from);
  // Returns the JSON value of a flag's words. A text that is not a number becomes a JSON string, which put() refuses.
  nlohmann::json (*json_of)(const std::vector<std::string>& words);
  bool is_list = false, is_switch = false, may_be_empty = false;
};

// The source of a value on --resume if no flag sets the value.
enum class OnResume {
  command_line,  // the default; for settings of one call of the program
  kept,          // the stored value, which a flag may change; for settings of the computation
  mesh,    // the stored value; if any flag of the mesh is given, the values of the command line for the whole mesh
  places,  // unused places of the mesh: the stored value, unless a flag of the mesh is given
  fixed,   // the stored value, and a flag with another value is refused; for settings of samples and weights
};

// The subcommands, and the benchmarks of `tessera bench`, that take settings as flags. `train` takes every setting.
enum class Command {
  train,
  plan,
  bench_step,
  bench_schedule,
  bench_products,
  bench_links,
  bench_kernels,
  generate,
  evaluate,
};

// A set of commands.
struct Commands {
  unsigned bits = 0;
  constexpr Commands() = default;
  constexpr Commands(Command one) : bits(1U << static_cast<unsigned>(one)) {}  // NOLINT(google-explicit-constructor)
  constexpr bool contains(Command command) const { return (bits & Commands(command).bits) != 0; }
};
constexpr Commands operator|(Commands a, Commands b) {
  a.bits |= b.bits;
  return a;
}

// The condition under which a setting has a meaning. Settings of fp8 and nvfp4 products are refused without such
// products, and summary.json shows them.
enum class Needs : std::uint8_t {
  nothing,
  fp8_products,
  delayed_scaling,  // fp8 products with delayed scaling
  nvfp4_products,
  divided_tokens,       // tp ranks that divide the tokens
  coded_tokens,         // products in the format of --tp-wire-format, and tp ranks that divide the tokens
  nodes,                // --reduce-order hierarchical
  automatic_recompute,  // --recompute auto
  muon,                 // a parameter that Muon updates; refused otherwise
};

struct Setting {
  std::string_view name;  // key in JSON; the flag has dashes instead of underscores
  Field field;
  Limits range;
  OnResume on_resume;
  std::string_view placeholder, help;
  Commands accepted_by = Command::train;
  Needs needs = Needs::nothing;

  bool is_of_fp8_products() const { return needs == Needs::fp8_products || needs == Needs::delayed_scaling; }
  bool is_of_products() const { return is_of_fp8_products() || needs == Needs::nvfp4_products; }
};

std::span<const Setting> settings();
// Returns the settings that the command takes as flags, in the order of the table.
std::vector<const Setting*> settings_of(Command command);

// A flag of a feature that does not exist yet, with its only valid value.
struct ReservedSetting {
  std::string_view name, only_value, feature;
};
std::span<const ReservedSetting> reserved_settings();

std::string flag_of(std::string_view name);  // "micro_batch" -> "--micro-batch"
const Setting* find_setting(std::string_view name);
const ReservedSetting* find_reserved(std::string_view name);

// Set a value. `where` names the setting in errors ("--lr", "FILE: key 'lr'"). Throw InputError for a wrong type, word
// or range. Flags and JSON have the same words, including on/off for booleans. JSON also has true/false.
void set_from_json(TrainConfig& config, const Setting& setting, const nlohmann::json& value, const std::string& where);
void set_from_text(TrainConfig& config, const Setting& setting, const std::vector<std::string>& words,
                   const std::string& where);
// The words of a command line, by name of the setting. A setting that is not given has an empty list.
using SettingWords = std::map<std::string, std::vector<std::string>, std::less<>>;
// Sets all of these settings; error messages name their flags.
void set_from_words(TrainConfig& config, const SettingWords& words);
// Checks the value of a reserved setting. Throws InputError unless the value is ReservedSetting::only_value.
void check_reserved(const ReservedSetting& setting, const nlohmann::json& value, const std::string& where);

// Returns the value as JSON. Returns null if the value is absent. Also returns null if the value follows from other
// settings and is not resolved yet.
nlohmann::json value_of(const TrainConfig& config, const Setting& setting);
// Returns every setting by key.
nlohmann::json to_json(const TrainConfig& config);

}  // namespace tessera::settings
