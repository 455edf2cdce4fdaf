// An entry of the registry: the names of an architecture in a config.json, and the function that parses the file.
#pragma once
#include <string_view>

#include "tessera/models/config_fields.h"
#include "tessera/models/model_config.h"

namespace tessera::models {

struct Architecture {
  std::string_view model_type;  // "model_type" of its config.json
  std::string_view class_name;  // the name in the list "architectures" of its config.json
  // `fields` is a config.json of this architecture. Throws InputError, see parse_model_config.
  ModelConfigPtr (*parse)(const Fields& fields);
};

}  // namespace tessera::models
