#include "tessera/ops/device/cached_memory.h"

#include <ATen/DeviceAccelerator.h>

namespace tessera::ops {

CachedMemoryScope::~CachedMemoryScope() {
  if (device_.kind != base::DeviceKind::cuda || std::uncaught_exceptions() > exceptions_) return;
  try {
    at::accelerator::emptyCache();
  } catch (const c10::Error&) {
    // An earlier failure of the device. The code that waited for the failed work has already reported it.
  }
}

}  // namespace tessera::ops
