// How often a thread has waited for lanes.
#pragma once
#include <cstdint>

namespace tessera::base {

// Of the calling thread, since it began: fences that it has blocked on until they were done (fence.h), whether or not
// they were done before. Asking whether one is done is no wait.
std::int64_t host_waits();

}  // namespace tessera::base
