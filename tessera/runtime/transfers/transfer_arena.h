// The memory of the program's transfers in pieces: each transfer receives into a range that peers write. The program
// takes and releases the ranges in the same order in every step of a kind, so first fit gives every transfer the same
// addresses again.
//
// A range may be reused as soon as it is released, although work on compute may still read it: a piece is received only
// after the work that was enqueued on compute when the piece was issued (Program::issue), and the sender waits for the
// receiver (comm/communicator.h).
#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include "tessera/base/buffer.h"

namespace tessera::runtime {

struct TransferMemory {
  std::byte* data = nullptr;         // null: the arena has no room; the interval is counted all the same
  std::shared_ptr<const void> hold;  // the range is in use until the last copy is released; null: in a dry run
};

// Used by one thread at a time. Starts without memory; grow() allocates what earlier steps needed.
class TransferArena : public std::enable_shared_from_this<TransferArena> {
 public:
  explicit TransferArena(base::Device device) : device_(device) {}

  TransferMemory take(std::int64_t bytes);
  // Allocates peak() bytes if the memory is smaller and no range is in use. No peer may write to the old memory.
  void grow();

  bool was_used() const { return taken_ > 0; }
  std::int64_t peak() const { return peak_; }  // end of the highest range so far, bytes
  base::Buffer& memory() { return memory_; }

 private:
  base::Device device_;
  base::Buffer memory_;
  std::map<std::int64_t, std::int64_t> used_;  // ends of the ranges in use, by offset
  std::int64_t peak_ = 0, taken_ = 0;
};

}  // namespace tessera::runtime
