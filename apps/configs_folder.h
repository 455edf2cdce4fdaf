// The folder of named models and machines.
#pragma once
#include <filesystem>

#include "tessera/base/env.h"

namespace tessera::apps {

// Returns TESSERA_CONFIGS of the environment. Without it, returns ../share/tessera/configs beside the program if that
// folder exists (an installed program), and otherwise the folder in the source tree.
std::filesystem::path configs_folder(const base::Environment& environment);

}  // namespace tessera::apps
