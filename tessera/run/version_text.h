// What `tessera --version` prints.
#pragma once
#include <string>

namespace tessera::run {

// The project's version, and what this build was compiled with; several lines.
std::string version_text();

}  // namespace tessera::run
