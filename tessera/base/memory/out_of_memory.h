// Failed allocations.
#pragma once
#include <new>
#include <stdexcept>

#include "tessera/base/error.h"

namespace tessera::base {

// An allocation failed. A program ends with exit code 2, because the sizes in its input do not fit. While a run trains,
// while_running() turns this error into an Error, with which a program ends with exit code 1.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

inline constexpr const char* kOutOfMemory =
    "out of memory: an allocation failed, expected smaller sizes or more memory";

// Returns work(). Throws OutOfMemory for a failed allocation of the standard library.
template <typename Work>
decltype(auto) naming_failed_allocations(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(kOutOfMemory);
  } catch (const std::length_error&) {  // a container above its largest size
    throw OutOfMemory(kOutOfMemory);
  }
}

// Calls work(), which trains. Throws Error for a failed allocation.
template <typename Work>
void while_running(Work work) {
  try {
    naming_failed_allocations(work);
  } catch (const OutOfMemory& error) {
    throw Error("{}", error.what());
  }
}

}  // namespace tessera::base
