// The one table of settings that the command line, the --config file, their checks and config.json are made from.
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
                           quant::AmaxChoice TrainConfig::*, nn::Fp8Scaling TrainConfig::*>;

// What may be asked for: low <= value <= high, or low < value < high where `open_*`. A default below the range stands
// for "follows from other settings".
struct Range {
  double low = -std::numeric_limits<double>::max(), high = std::numeric_limits<double>::max();
  bool open_low = false, open_high = false;
};

// Where a value comes from on --resume when no flag gives it.
enum class OnResume {
  command_line,  // what belongs to one call of the program: the default
  kept,          // what is computed, and how: the stored value; a flag may change it
  mesh,          // the stored value, unless a flag of any of these settings is given: then the command line's
  fixed,         // what the samples and weights are: the stored value; a flag that differs is refused
};

// A subcommand, or a benchmark of `tessera bench`, that takes settings as flags. `train` takes every setting.
enum class Command { train, plan, bench_step, bench_schedule, bench_products, bench_links, bench_kernels };

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
  Commands takers = Command::train;
};

std::span<const Setting> settings();
// The settings that the command takes as flags, in the order of the table.
std::vector<const Setting*> settings_of(Command command);

// Flags of features that do not exist yet, with the only value accepted.
struct ReservedSetting {
  std::string_view name, only_value, feature;
};
std::span<const ReservedSetting> reserved_settings();

std::string flag_of(std::string_view name);  // "micro_batch" -> "--micro-batch"
const Setting* find_setting(std::string_view name);
const ReservedSetting* find_reserved(std::string_view name);

// Puts a value in. `where` names it in errors ("--lr", "FILE: key 'lr'"). InputError: wrong type, word or range.
// Text (of a flag) takes the same words as JSON, with on/off for booleans; JSON also takes true/false.
void set_from_json(TrainConfig& config, const Setting& setting, const nlohmann::json& value, const std::string& where);
void set_from_text(TrainConfig& config, const Setting& setting, const std::vector<std::string>& words,
                   const std::string& where);
// The words of a command line by setting's name; a setting that is not given has no words.
using SettingWords = std::map<std::string, std::vector<std::string>, std::less<>>;
// Puts all of them in, named by their flags.
void set_from_words(TrainConfig& config, const SettingWords& words);
// As set_from_*, for a reserved setting: nothing happens when it is the accepted value. InputError otherwise.
void check_reserved(const ReservedSetting& setting, const nlohmann::json& value, const std::string& where);

// The value as JSON; null for one that is absent, or is to follow from others and has not been resolved.
nlohmann::json value_of(const TrainConfig& config, const Setting& setting);
// Every setting, by key.
nlohmann::json to_json(const TrainConfig& config);

// ": did you mean 'X'?" for the candidate nearest to `name` within two edits (three for long names), else "".
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tessera::run
