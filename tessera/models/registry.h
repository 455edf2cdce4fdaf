// The table of architectures, and the parser that turns a config.json into a ModelConfig.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tessera/models/architecture.h"

namespace tessera::models {

// Returns all architectures. Only tests call this function.
std::span<const Architecture> architectures();

// Parses the JSON of a config.json. `where` names the file in errors. "model_type" selects the architecture. If
// "model_type" is absent, "architectures" selects the architecture. Throws InputError for an unknown architecture, a
// missing field, a wrong type or range, and an option that is not supported. The message contains the file, the field,
// the value and the expected value.
ModelConfigPtr parse_model_config(const nlohmann::json& config, const std::string& where);
ModelConfigPtr read_model_config(const std::filesystem::path& file);
// Returns warnings about keys of a valid config.json that are not read (unread_keys.h). Returns nothing for other
// files.
std::vector<std::string> model_config_warnings(const std::filesystem::path& file);

// Returns the config.json of `--model NAME`. A plain name means CONFIGS/NAME.json or CONFIGS/NAME/config.json. Any
// other name is a path to such a file or to a folder that holds a config.json. Throws InputError if no file or several
// files match. The message lists the searched paths and the known names, or the matching files.
std::filesystem::path find_model_config(const std::string& name, const std::filesystem::path& configs);

}  // namespace tessera::models
