// How often the host has waited for lanes.
#pragma once
#include <cstdint>

namespace tessera::base {

// Calls that blocked until a fence was done (fence.h), or would have: of all threads of this process, since it began.
// A call that its time limit ended is none, nor is Fence::done(). Ranks that are threads of one process add up.
std::int64_t host_waits();

}  // namespace tessera::base
