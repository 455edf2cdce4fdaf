// Helpers of the tests of settings.
#pragma once
#include <string>
#include <vector>

#include "tessera/settings/text/parse.h"
#include "tests/base/files.h"

namespace tessera::settings {

inline TrainConfig parse(const std::vector<std::string>& flags) {
  return parse_train_flags(flags).config;
}

}  // namespace tessera::settings
