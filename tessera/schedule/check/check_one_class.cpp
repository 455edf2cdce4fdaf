#include "tessera/schedule/check/check_one_class.h"

#include <fmt/format.h>

#include "tessera/schedule/check/check.h"
#include "tessera/schedule/check/together.h"

namespace tessera::schedule {

std::vector<std::string> check_one_class(const std::set<std::string>& roles, const Trace& trace,
                                         const std::vector<ParameterSize>& sizes, const Schedule& schedule) {
  std::vector<std::string> faults = check(trace, sizes, schedule);
  if (!faults.empty()) return faults;
  for (const std::string& role : call_order(trace, sizes, schedule).roles)
    if (!roles.contains(role))
      faults.push_back(fmt::format("the schedule calls collectives of the role '{}', which has no groups", role));
  return faults;
}

}  // namespace tessera::schedule
