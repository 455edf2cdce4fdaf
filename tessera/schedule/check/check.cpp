#include "tessera/schedule/check/check.h"

#include <array>

#include "tessera/schedule/check/lanes.h"
#include "tessera/schedule/check/pieces.h"
#include "tessera/schedule/check/shape.h"

namespace tessera::schedule {
namespace {

// Index: step. Whether the optimizer updates the weights after this step. The third update is skipped.
constexpr std::array<bool, 4> kPublishes = {true, true, false, true};

}  // namespace

std::vector<std::string> check(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule) {
  CheckFaults faults(trace, sizes, schedule);
  check_trace(trace, sizes.size(), schedule, faults);
  check_pieces(trace, faults);
  check_units(sizes, schedule, faults);
  if (!faults.none()) return faults.take();
  check_residencies(trace, schedule, faults);
  if (faults.none()) check_copies(trace, schedule, faults);
  check_reductions(trace, schedule, faults);
  if (!faults.none()) return faults.take();
  const std::vector<int> taken = match_produces(trace, sizes, schedule, faults);
  if (!faults.none()) return faults.take();

  CheckedLanes lanes(trace, sizes, schedule, taken, faults);
  for (const bool publishes : kPublishes) {
    lanes.run_step(publishes);
    if (!faults.none()) break;
  }
  return faults.take();
}

}  // namespace tessera::schedule
