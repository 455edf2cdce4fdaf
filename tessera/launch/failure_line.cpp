#include "tessera/launch/failure_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace tessera::launch {

std::string full_disk_advice(std::string_view message, bool is_training) {
  const bool is_full = std::ranges::any_of(std::array{ENOSPC, EDQUOT}, [&](int code) {
    return message.find(std::generic_category().message(code)) != std::string_view::npos;
  });
  if (!is_full) return "";
  return is_training ? " (free space there; --resume latest then continues from the last checkpoint; --keep N stores "
                       "fewer checkpoints)"
                     : " (free space there, then repeat the command)";
}

std::string failure_line(int rank, std::string_view message) {
  const bool waited = message.find("time limit of") != std::string_view::npos;
  return fmt::format("tessera: rank {}: {}{}{}", rank, message, full_disk_advice(message, true),
                     waited ? " (--timeout-s sets the limit; --resume latest continues from the last checkpoint; "
                              "tessera resume-command continues without a rank)"
                            : "");
}

}  // namespace tessera::launch
