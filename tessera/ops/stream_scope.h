// libtorch's current stream, and what it keeps of streams.
#pragma once
#include <exception>
#include <memory>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"

namespace tessera::ops {

// While it lives, what this thread calls of ATen on `device` is put on `stream`, backward passes included. Nothing for
// the CPU.
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
