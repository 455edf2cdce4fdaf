#include "tessera/runtime/transfers/transfer_arena.h"

#include <algorithm>

namespace tessera::runtime {

TransferMemory TransferArena::take(std::int64_t bytes) {
  const std::int64_t room = std::max<std::int64_t>(base::align_up(bytes), base::kAlignment);
  std::int64_t offset = 0;
  for (const auto& [begin, end] : used_) {
    if (begin - offset >= room) break;
    offset = end;
  }
  used_[offset] = offset + room;
  peak_ = std::max(peak_, offset + room);
  ++taken_;
  const bool fits = offset + room <= static_cast<std::int64_t>(memory_.size());
  const auto release = [arena = shared_from_this(), offset](const void*) { arena->used_.erase(offset); };
  return {.data = fits ? memory_.data() + offset : nullptr,
          .offset = offset,
          .hold = std::shared_ptr<const void>(this, release)};
}

void TransferArena::grow() {
  if (!used_.empty() || static_cast<std::int64_t>(memory_.size()) >= peak_) return;
  memory_ = base::Buffer();  // frees the old memory before the new memory is allocated
  memory_ = base::Buffer(static_cast<std::size_t>(peak_), device_);
}

}  // namespace tessera::runtime
