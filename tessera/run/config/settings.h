// The single table of settings. The command line, the --config file, their checks and config.json are made from the
// table.
#pragma once
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/run/config/config.h"

namespace tessera::run {

using Field = std::variant<std::string TrainConfig::*, std::vector<std::string> TrainConfig::*, bool TrainConfig::*,
                           std::int64_t TrainConfig::*, std::uint64_t TrainConfig::*, double TrainConfig::*,
                           Backend TrainConfig::*, train::RateShape TrainConfig::*, ReduceOrder TrainConfig::*,
                           RecomputeSetting TrainConfig::*, Lookup TrainConfig::*, quant::DType TrainConfig::*,
                           std::optional<quant::DType> TrainConfig::*, quant::Format TrainConfig::*,
                           std::optional<quant::Format> TrainConfig::*, quant::Fp8Recipe TrainConfig::*,
                           quant::AmaxChoice TrainConfig::*, nn::Fp8Scaling TrainConfig::*, nn::MoeAux TrainConfig::*>;

// Valid values: low <= value <= high, or low < value < high where `open_*` is set. A default below the range means that
// the value follows from other settings.
struct Range {
  double low = -std::numeric_limits<double>::max(), high = std::numeric_limits<double>::max();
  bool open_low = false, open_high = false;
};

// The source of a value on --resume if no flag sets the value.
enum class OnResume {
  command_line,  // for settings of one call of the program: the default
  kept,          // for settings of the computation: the stored value; a flag may change it
  mesh,          // the stored value; if a flag of any mesh setting is given, the value of the command line
  fixed,         // for settings of samples and weights: the stored value; another value is refused
};

// A subcommand, or a benchmark of `tessera bench`, that takes settings as flags. `train` takes every setting.
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

struct Setting {
  std::string_view name;  // key in JSON; the flag has dashes for underscores
  Field field;
  Range range;
  OnResume on_resume;
  std::string_view placeholder, help;
  Commands accepted_by = Command::train;
};

std::span<const Setting> settings();
// Returns the settings that the command takes as flags, in the order of the table.
std::vector<const Setting*> settings_of(Command command);

// Flags of features that do not exist yet, with the only valid value.
struct ReservedSetting {
  std::string_view name, only_value, feature;
};
std::span<const ReservedSetting> reserved_settings();

std::string flag_of(std::string_view name);  // "micro_batch" -> "--micro-batch"
const Setting* find_setting(std::string_view name);
const ReservedSetting* find_reserved(std::string_view name);

// Set a value. `where` names the setting in errors ("--lr", "FILE: key 'lr'"). Throw InputError for a wrong type, word
// or range. The text of a flag has the same words as JSON, with on/off for booleans; JSON also has true/false.
void set_from_json(TrainConfig& config, const Setting& setting, const nlohmann::json& value, const std::string& where);
void set_from_text(TrainConfig& config, const Setting& setting, const std::vector<std::string>& words,
                   const std::string& where);
// The words of a command line by setting name; a setting that is not given has an empty list.
using SettingWords = std::map<std::string, std::vector<std::string>, std::less<>>;
// Sets all of these settings; error messages name their flags.
void set_from_words(TrainConfig& config, const SettingWords& words);
// Checks a value as set_from_* does, for a reserved setting. Throws InputError unless the value is the only valid
// value.
void check_reserved(const ReservedSetting& setting, const nlohmann::json& value, const std::string& where);

// Returns the value as JSON. Returns null if the value is absent, or follows from other settings and is not resolved
// yet.
nlohmann::json value_of(const TrainConfig& config, const Setting& setting);
// Returns every setting by key.
nlohmann::json to_json(const TrainConfig& config);

}  // namespace tessera::run
