#include <c10/cuda/CUDAStream.h>

#include "tessera/base/error.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::cuda {

base::CudaStream stream_of(const at::Tensor& tensor) {
  const at::DeviceIndex device = tensor.device().index(), current = c10::cuda::current_device();
  TESSERA_CHECK(device == current, "an operator on cuda:{}: expected it to be the current device, got cuda:{}", device,
                current);
  return c10::cuda::getCurrentCUDAStream(device).stream();
}

}  // namespace tessera::ops::cuda
