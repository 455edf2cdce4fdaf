// Sets libtorch's current stream.
#pragma once
#include <memory>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"

namespace tessera::ops {

// During this scope, ATen enqueues this thread's work on `device` on `stream`. This includes backward passes. The scope
// does nothing for the CPU.
class StreamScope {
 public:
  StreamScope(base::Device device, base::CudaStream stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

}  // namespace tessera::ops
