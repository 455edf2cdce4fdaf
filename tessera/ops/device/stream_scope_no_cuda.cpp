#include "tessera/base/error.h"
#include "tessera/ops/device/stream_scope.h"

namespace tessera::ops {

struct StreamScope::Guard {};

StreamScope::StreamScope(base::Device device, base::CudaStream /*stream*/) {
  if (device.kind == base::DeviceKind::cuda) throw Error("a stream of {}: this build has no CUDA", name_of(device));
}
StreamScope::~StreamScope() = default;

}  // namespace tessera::ops
