// The memory into which peers write the pieces of the program's transfers. Each transfer has a range of this memory.
// The program takes and releases ranges in the same order in every step of a kind. First-fit allocation therefore gives
// each transfer the same address in every step.
//
// A range may be reused as soon as it is released, even if compute has not yet executed all work that reads the range.
// This is safe because a new piece is received only after the work that was enqueued on compute when the piece was
// issued (Program::issue). The sender waits until the receiver is ready (comm/communicator.h).
#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include "tessera/base/memory/buffer.h"

namespace tessera::runtime {

struct TransferMemory {
  std::byte* data = nullptr;  // null: the arena has no memory for the range, but the range counts for peak()
  std::int64_t offset = -1;   // position of the range in the arena, in bytes
  // The range is in use until the last copy of `hold` is released.
  std::shared_ptr<const void> hold;
};

// Used by one thread at a time. The arena has no memory at first. grow() allocates as much memory as earlier steps
// needed.
class TransferArena : public std::enable_shared_from_this<TransferArena> {
 public:
  explicit TransferArena(base::Device device) : device_(device) {}

  TransferMemory take(std::int64_t bytes);
  // Allocates peak() bytes if the memory is smaller and no range is in use. Peers must no longer write to the old
  // memory.
  void grow();

  // Returns whether an address is in the arena's memory.
  bool contains(const void* address) const {
    const auto* byte = static_cast<const std::byte*>(address);
    return byte >= memory_.data() && byte < memory_.data() + memory_.size();
  }
  bool was_used() const { return taken_ > 0; }
  std::int64_t peak() const { return peak_; }  // end of the highest range that was ever taken, in bytes
  base::Buffer& memory() { return memory_; }

 private:
  base::Device device_;
  base::Buffer memory_;
  std::map<std::int64_t, std::int64_t> used_;  // ranges in use: end by begin, as offsets
  std::int64_t peak_ = 0, taken_ = 0;
};

}  // namespace tessera::runtime
