// The line that a rank of a failed run prints before it ends.
#pragma once
#include <string>
#include <string_view>

namespace tessera::run {

// Returns "tessera: rank 2: MESSAGE". If the rank failed because it waited for other ranks until the time limit, the
// line also contains advice for the user.
std::string failure_line(int rank, std::string_view message);

}  // namespace tessera::run
