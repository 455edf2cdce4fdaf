// The architectures there are, and a model's configuration from its config.json.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tessera/models/architecture.h"

namespace tessera::models {

// All of them. Only tests call it.
std::span<const Architecture> architectures();

// From the JSON of a config.json; `where` names it in errors. "model_type" chooses the architecture, or "architectures"
// where there is no type. InputError that names file, field, value and expectation: an architecture that is not
// known (with the list of those that are), a missing field, a wrong type or range, an option that the architecture does
// not have here.
ModelConfigPtr parse_model_config(const nlohmann::json& config, const std::string& where);
ModelConfigPtr read_model_config(const std::filesystem::path& file);

// The config.json that `--model NAME` means: CONFIGS/NAME.json or CONFIGS/NAME/config.json for a plain name, else a
// path to such a file or to a folder that holds a config.json. InputError lists where it looked and the names there
// are, or the files where several are meant.
std::filesystem::path find_model_config(const std::string& name, const std::filesystem::path& configs);

}  // namespace tessera::models
