// How often the host has waited for lanes.
#pragma once
#include <cstdint>

namespace tessera::base {

// Calls in this process, by any of its threads, that blocked until a fence was done (fence.h), whether or not it was
// done before, in its lifetime so far. Those that a time limit ended are none, nor is Fence::done(). For a rank that is
// a process; ranks that are threads add up.
std::int64_t host_waits();

}  // namespace tessera::base
