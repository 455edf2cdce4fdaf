#include "tessera/run/launch/failure_line.h"

#include <fmt/format.h>

namespace tessera::run {

std::string failure_line(int rank, std::string_view message) {
  const bool waited = message.find("time limit of") != std::string_view::npos;
  return fmt::format("tessera: rank {}: {}{}", rank, message,
                     waited ? " (--timeout-s sets the limit; --resume latest continues from the last checkpoint; "
                              "tessera resume-command continues without a rank)"
                            : "");
}

}  // namespace tessera::run
