// The memory of freed tensors.
#pragma once
#include <exception>

#include "tessera/base/device.h"

namespace tessera::ops {

// Gives back, at its end, what libtorch keeps of tensors on `device` that were freed before: for whoever takes memory
// by other means next. Nothing for the CPU; nothing while an exception unwinds, since libtorch waits for streams that
// may never come to their end.
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
