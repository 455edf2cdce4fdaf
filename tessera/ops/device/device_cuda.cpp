#include <c10/cuda/CUDAStream.h>

#include "tessera/base/error.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::cuda {

base::CudaStream stream_of(const at::Tensor& tensor) {
  const at::DeviceIndex device = tensor.device().index(), current = c10::cuda::current_device();
  TESSERA_CHECK(device == current, "an operator on cuda:{}: expected it to be the current device, got cuda:{}", device,
                current);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
  return stream != nullptr ? stream : cudaStreamLegacy;  // a null stream means the CPU
}

}  // namespace tessera::ops::cuda
