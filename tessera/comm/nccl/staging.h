// Operands in host memory, on their way through pinned memory and the device.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/base/cuda_lane.h"
#include "tessera/base/cuda_stream.h"
#include "tessera/comm/messages.h"

namespace tessera::comm {

// A piece of memory that grows to what is asked for, and is used in the order of one stream. Nothing is freed before
// its owner: work under way may use what was there before, and freeing waits for a device.
class GrowingBuffer {
 public:
  // `device` of the CPU kind: pinned memory.
  explicit GrowingBuffer(base::Device device) : device_(device) {}
  std::byte* of(std::size_t bytes);

 private:
  base::Device device_;
  std::vector<base::Buffer> buffers_;  // the last one counts
};

class NcclStaging {
 public:
  // `faults`: of the stream's lane. Its stream copies nothing from or to operands that a failure has given up, so their
  // owner may free them.
  NcclStaging(base::Device device, base::CudaStream stream, std::shared_ptr<const base::LaneFaults> faults);
  // Where the stream has not ended its work, the staging memory stays allocated.
  ~NcclStaging();
  NcclStaging(const NcclStaging&) = delete;
  NcclStaging& operator=(const NcclStaging&) = delete;

  // `operation` with device memory for each operand in host memory, which the stream fills before. Its counts are
  // checked. Error: such an operand where the stream is recorded into a graph.
  Operation to_device(const Operation& operation, const GroupIdentity& group);
  // The stream brings back what the operation has written. After to_device and the operation.
  void to_host();

 private:
  struct Piece {
    const void* source = nullptr;  // read before, null where nothing is
    void* target = nullptr;        // written after
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
