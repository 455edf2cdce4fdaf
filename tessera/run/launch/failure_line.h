// The line with which a rank ends a run that failed.
#pragma once
#include <string>
#include <string_view>

namespace tessera::run {

// "tessera: rank 2: MESSAGE". Where the rank waited for others until the time limit, also what a user can do.
std::string failure_line(int rank, std::string_view message);

}  // namespace tessera::run
