#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "tessera/ops/device/stream_scope.h"

namespace tessera::ops {

struct StreamScope::Guard {
  c10::cuda::CUDAStreamGuard guard;
};

StreamScope::StreamScope(base::Device device, base::CudaStream stream) {
  if (device.kind != base::DeviceKind::cuda) return;
  const auto index = static_cast<c10::DeviceIndex>(device.index);
  guard_.reset(new Guard{c10::cuda::CUDAStreamGuard(c10::cuda::getStreamFromExternal(stream, index))});
}
StreamScope::~StreamScope() = default;

}  // namespace tessera::ops
