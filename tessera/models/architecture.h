// An entry of the registry: how the models of one architecture are named in a config.json, and who reads it.
#pragma once
#include <string_view>

#include "tessera/models/config_fields.h"
#include "tessera/models/model_config.h"

namespace tessera::models {

struct Architecture {
  std::string_view model_type;  // "model_type" of its config.json
  std::string_view class_name;  // one of "architectures" there
  // fields: of a config.json of this architecture. InputError: see parse_model_config.
  ModelConfigPtr (*parse)(const Fields& fields);
};

}  // namespace tessera::models
