// Checks the pieces of the program's transfers (events.h). Each piece is begun and then needed once, in the same
// microbatch, and the pieces of a transfer begin in order.
#pragma once
#include "tessera/schedule/check/faults.h"

namespace tessera::schedule {

void check_pieces(const Trace& trace, CheckFaults& faults);

}  // namespace tessera::schedule
