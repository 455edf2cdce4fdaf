#include "tessera/plan/search/progress_lines.h"

#include <fmt/format.h>

namespace tessera::plan {

std::optional<std::string> ProgressLines::next(std::size_t planned, std::size_t all, double seconds) {
  if (seconds < due_ || planned == all) return std::nullopt;
  due_ = seconds + 10;
  return fmt::format("planned {} of {} {} in {:.0f} s", planned, all, things_, seconds);
}

}  // namespace tessera::plan
