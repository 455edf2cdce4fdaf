// Packs the boxes of a message from a tensor's local buffer into one contiguous buffer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/layout/redistribute.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

// The position of a box in a buffer, in elements.
struct Side {
  std::int64_t offset = 0, stride = 0;
};
inline Side source_of(const layout::Transfer& transfer) {
  return {transfer.source_offset, transfer.source_stride};
}
inline Side target_of(const layout::Transfer& transfer) {
  return {transfer.target_offset, transfer.target_stride};
}

// Tracks whether the transfers of a message are contiguous in the source buffer or in the target buffer, in the order
// of the message.
class Run {
 public:
  void add(const layout::Transfer& transfer, Side side);
  // Returns the offset of the first transfer if the transfers are contiguous.
  std::optional<std::int64_t> begin() const { return broken_ ? std::nullopt : std::optional(begin_); }

 private:
  std::int64_t begin_ = 0, next_ = 0;
  bool empty_ = true, broken_ = false;
};
std::optional<std::int64_t> run_of(const std::vector<layout::Transfer>& transfers,
                                   Side (*side)(const layout::Transfer&));

// All boxes that this rank sends to `peer`, or all boxes that this rank receives from `peer`. In the message, each box
// is stored densely, row by row.
struct BoxMessage {
  int peer = 0;
  std::int64_t elements = 0;
  std::optional<std::int64_t> run;  // offset in the local buffer, if the boxes are also contiguous in this buffer
  std::vector<layout::Transfer> transfers;
};
// The messages that one rank sends and the messages that it receives. The part that the rank keeps is a message to
// itself. Both lists are ordered by peer.
struct BoxMessages {
  std::vector<BoxMessage> sends, receives;
};
BoxMessages box_messages(const layout::TransferPlan& plan, int rank);

// Copies the box of a transfer between two buffers.
void copy_box(const quant::Kernels& kernels, const layout::Transfer& transfer, const void* source, Side from,
              void* target, Side to, quant::DType type);
// Copies all boxes of a message into `packed`, contiguously and in order.
void pack_boxes(const quant::Kernels& kernels, const std::vector<layout::Transfer>& transfers, const void* source,
                void* packed, quant::DType type);

}  // namespace tessera::comm
