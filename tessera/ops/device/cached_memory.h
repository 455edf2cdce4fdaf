// The memory of freed tensors that libtorch caches.
#pragma once
#include <exception>

#include "tessera/base/device.h"

namespace tessera::ops {

// At the end of the scope, returns the memory that libtorch caches for freed tensors on `device` to the driver. Use a
// scope before code that allocates device memory without libtorch. The scope does nothing for the CPU. The scope also
// does nothing while an exception unwinds, because libtorch would wait for streams that may never finish.
class CachedMemoryScope {
 public:
  explicit CachedMemoryScope(base::Device device) : device_(device) {}
  ~CachedMemoryScope();
  CachedMemoryScope(const CachedMemoryScope&) = delete;
  CachedMemoryScope& operator=(const CachedMemoryScope&) = delete;

 private:
  const base::Device device_;
  const int exceptions_ = std::uncaught_exceptions();  // exceptions in flight at construction
};

}  // namespace tessera::ops
