// Parses settings from a command line and a --config file.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/settings/config.h"

namespace tessera::settings {

struct TrainCommand {
  bool help = false;  // true: --help was given; print train_help() and ignore the other members
  TrainConfig config;
};

// Parses the words after `train`. Flags override the --config file, which overrides defaults. `config.given` contains
// the keys that a flag or the file sets. Throws InputError for: an unknown name; a value of the wrong type, word or
// range; a flag without a value; a repeated flag; a feature that does not exist yet. The message names the flag, or the
// file and the key. For an unknown name, the message also contains the nearest known name.
TrainCommand parse_train_flags(const std::vector<std::string>& flags);

// Applies one JSON object of settings. Keys are the flags' names with underscores (micro_batch); a key with dashes is
// unknown. A null counts as a key that is not given. Lists (data, valid) are a string or an array.
void apply_json(TrainConfig& config, const nlohmann::json& settings, const std::string& where);

// Returns the output of `tessera train --help`.
std::string train_help();

}  // namespace tessera::settings
