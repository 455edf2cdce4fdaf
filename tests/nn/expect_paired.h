// Checks that the events of a step are paired: see expect_paired.
#pragma once
#include <string>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::nn {

// Expects that each weight consumed in a pass is released in the same pass before the step ends, and that no weight is
// released without a consume. Expects that each fetch returns the newest kept stash, with the bytes and the way of that
// stash, and that no stash remains at the end.
void expect_paired(const schedule::Trace& trace, const std::vector<std::string>& names);

}  // namespace tessera::nn
