// The memory of freed tensors.
#pragma once
#include <exception>

#include "tessera/base/device.h"

namespace tessera::ops {

// Gives back, at its end, what libtorch keeps of freed tensors on `device`: with expandable segments it remembers the
// streams of that memory, so it must end before a stream that tensors were made on and after those tensors. Nothing for
// the CPU; nothing while an exception unwinds, when a stream may never come to its end.
class CachedMemoryScope {
 public:
  explicit CachedMemoryScope(base::Device device) : device_(device) {}
  ~CachedMemoryScope();
  CachedMemoryScope(const CachedMemoryScope&) = delete;
  CachedMemoryScope& operator=(const CachedMemoryScope&) = delete;

 private:
  const base::Device device_;
  const int exceptions_ = std::uncaught_exceptions();  // under way when this was made
};

}  // namespace tessera::ops
