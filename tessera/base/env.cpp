#include "tessera/base/env.h"

#include <cstdlib>
#include <string_view>

namespace tessera::base {

Environment read_environment() {
  Environment environment;
  if (const char* configs = std::getenv("TESSERA_CONFIGS")) environment.configs = configs;
  const char* check = std::getenv("TESSERA_CHECK_COLLECTIVES");
  environment.check_collectives = check != nullptr && std::string_view(check) == "1";
  if (const char* python = std::getenv("TESSERA_PYTHON")) environment.python = python;
  return environment;
}

}  // namespace tessera::base
