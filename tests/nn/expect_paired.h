// Checks that the events of a step that begin and end an interval are paired.
#pragma once
#include <string>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::nn {

// Expects that each weight consumed in a pass is released in the same pass before the step ends, and that no weight is
// released without a consume event. Expects that each fetch belongs to the newest stash that is not fetched yet, with
// equal bytes and equal `op`, and that all stashes are fetched at the end.
void expect_paired(const schedule::Trace& trace, const std::vector<std::string>& names);

}  // namespace tessera::nn
