// Settings from a command line and a --config file.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/run/config/config.h"

namespace tessera::run {

struct TrainCommand {
  bool help = false;  // --help was given: print train_help(), nothing else counts
  TrainConfig config;
};

// `flags`: the words after `train`. Flags win over the file of --config, which wins over defaults. `config.given` holds
// the keys that either gave. InputError, naming flag or file and key, on an unknown one (with the nearest known name),
// on a value of the wrong type, word or range, on a flag without value or given twice, on a feature that is not built
// yet.
TrainCommand parse_train_flags(const std::vector<std::string>& flags);

// `settings` is one JSON object; its keys are the flags' names with underscores (micro_batch; a key with dashes is
// unknown). A null is a key not given. Lists (data, valid) are a string or an array.
void apply_json(TrainConfig& config, const nlohmann::json& settings, const std::string& where);

// What `tessera train --help` prints.
std::string train_help();

}  // namespace tessera::run
