// What holds of the events of every step: see expect_paired.
#pragma once
#include <string>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::nn {

// Expects that each weight that is consumed in a pass is released in it before the step ends and never without, and
// that each fetch gives back the newest stash that is still kept, with its bytes and its way; and that nothing is kept
// at the end.
void expect_paired(const schedule::Trace& trace, const std::vector<std::string>& names);

}  // namespace tessera::nn
