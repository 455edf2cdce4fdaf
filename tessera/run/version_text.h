// The output of `tessera --version`.
#pragma once
#include <string>

namespace tessera::run {

// Returns the project's version and the properties of this build, in several lines.
std::string version_text();

}  // namespace tessera::run
