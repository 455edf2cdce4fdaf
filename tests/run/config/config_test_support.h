// Helpers of the tests of settings.
#pragma once
#include <string>
#include <vector>

#include "tessera/run/config/parse.h"
#include "tests/base/files.h"

namespace tessera::run {

inline TrainConfig parse(const std::vector<std::string>& flags) {
  return parse_train_flags(flags).config;
}

}  // namespace tessera::run
