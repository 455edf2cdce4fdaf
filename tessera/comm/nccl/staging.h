// Copies operands in host memory to the device and back, through pinned memory.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/comm/messages.h"

namespace tessera::comm {

// A buffer that grows to the requested size. One stream uses the buffer, in the order of its work. Earlier allocations
// are freed only with this object, because pending work may still use them, and freeing waits for a device.
class GrowingBuffer {
 public:
  // A `device` of kind CPU gives pinned memory.
  explicit GrowingBuffer(base::Device device) : device_(device) {}
  std::byte* of(std::size_t bytes);

 private:
  base::Device device_;
  std::vector<base::Buffer> buffers_;  // the last buffer is the current one
};

class NcclStaging {
 public:
  // `faults` belongs to the stream's lane. After a failure, fences stop waiting for the device
  // (LaneFaults::is_abandoned). From then on the stream does not access the failed operations' operands in host memory,
  // and the owner may free the operands.
  NcclStaging(base::Device device, base::CudaStream stream, std::shared_ptr<const base::LaneFaults> faults);
  // If the stream still has pending work, the staging memory stays allocated.
  ~NcclStaging();
  NcclStaging(const NcclStaging&) = delete;
  NcclStaging& operator=(const NcclStaging&) = delete;

  // Returns `operation` with a device buffer in place of each operand in host memory. The stream fills the buffers
  // before the operation. The caller must have checked `operation` (check_arguments). Throws Error if an operand is in
  // host memory while the stream is captured into a graph.
  Operation to_device(const Operation& operation, const GroupIdentity& group);
  // Enqueues the copies of the operation's results back to host memory. Called after to_device and the operation.
  void to_host();

 private:
  struct Piece {
    const void* source = nullptr;  // host memory that the operation reads; null: not read
    void* target = nullptr;        // host memory that the operation writes; null: not written
    std::size_t bytes = 0, at = 0;
  };
  void collect(const Operation& operation, const GroupIdentity& group);
  void add(const void* source, void* target, std::size_t bytes);
  void copy_on_host(std::vector<Copy> copies);

  const base::Device device_;
  const base::CudaStream stream_;
  const std::shared_ptr<const base::LaneFaults> faults_;
  GrowingBuffer pinned_, on_device_;
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
  std::byte* host_base_ = nullptr;
  std::byte* device_base_ = nullptr;
};

}  // namespace tessera::comm
