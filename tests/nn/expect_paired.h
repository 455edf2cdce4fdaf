// Checks that the events of a step that begin and end an interval are paired, and that stashes share no memory.
#pragma once
#include <string>
#include <vector>

#include "tessera/runtime/record/stashes.h"
#include "tessera/schedule/events.h"

namespace tessera::nn {

// Expects that each weight consumed in a pass is released in the same pass before the step ends, and that no weight is
// released without a consume event. Expects that each fetch belongs to the newest stash that is not fetched yet, with
// equal bytes and equal `op`, and that all stashes are fetched at the end.
void expect_paired(const schedule::Trace& trace, const std::vector<std::string>& names);
// Expects that each stash was fetched, and that no two items that a microbatch stashes in forward share memory. A
// tensor that two functions save is then an item of one of them.
void expect_distinct(const runtime::Stashes& stashes);

}  // namespace tessera::nn
