// Helpers of the tests of settings.
#pragma once
#include <string>
#include <vector>

#include "tessera/train/config/parse.h"
#include "tests/base/files.h"

namespace tessera::train {

inline TrainConfig parse(const std::vector<std::string>& flags) {
  return parse_train_flags(flags).config;
}

}  // namespace tessera::train
