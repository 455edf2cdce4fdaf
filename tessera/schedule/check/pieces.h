// Checks the pieces of the program's transfers (events.h). Each piece must be begun once and then needed once, in the
// same microbatch. The pieces of a transfer must be begun in order.
#pragma once
#include "tessera/schedule/check/faults.h"

namespace tessera::schedule {

void check_pieces(const Trace& trace, CheckFaults& faults);

}  // namespace tessera::schedule
