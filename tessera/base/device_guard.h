// Selects a CUDA device for the duration of a scope. Only for files that are compiled with CUDA.
#pragma once
#include "tessera/base/cuda_check.h"
#include "tessera/base/device.h"

namespace tessera::base {

// Sets the CUDA device of the calling thread, and restores the previous device on destruction.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) {
    TESSERA_CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ == device.index)
      before_ = -1;
    else
      TESSERA_CUDA_CHECK(cudaSetDevice(device.index));
  }
  ~DeviceGuard() {
    if (before_ >= 0) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;
};

}  // namespace tessera::base
