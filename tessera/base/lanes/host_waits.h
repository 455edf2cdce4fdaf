// Counts how often the host waits for lanes.
#pragma once
#include <cstdint>

namespace tessera::base {

// Returns the number of waits for a fence (fence.h), in all threads of the process since its start. Waits for a fence
// that is already done are counted. Waits that time out and calls of Fence::done() are not counted. Ranks that are
// threads of one process share the count.
std::int64_t host_waits();

}  // namespace tessera::base
