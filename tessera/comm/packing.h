// The boxes of a message between a tensor's local buffer and one dense run of memory.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/layout/redistribute.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

// Where a box lies in a buffer, in elements.
struct Side {
  std::int64_t offset = 0, stride = 0;
};
inline Side source_of(const layout::Transfer& transfer) {
  return {transfer.source_offset, transfer.source_stride};
}
inline Side target_of(const layout::Transfer& transfer) {
  return {transfer.target_offset, transfer.target_stride};
}

// One side of a message's transfers: whether they lie one behind the other there.
class Run {
 public:
  void add(const layout::Transfer& transfer, Side side);
  // Where they begin, if they do.
  std::optional<std::int64_t> begin() const { return broken_ ? std::nullopt : std::optional(begin_); }

 private:
  std::int64_t begin_ = 0, next_ = 0;
  bool empty_ = true, broken_ = false;
};
std::optional<std::int64_t> run_of(const std::vector<layout::Transfer>& transfers,
                                   Side (*side)(const layout::Transfer&));

// All boxes that go to or come from one rank, one behind the other, each dense by rows.
struct BoxMessage {
  int peer = 0;
  std::int64_t elements = 0;
  std::optional<std::int64_t> run;  // where they lie in the local buffer, if one behind the other there too
  std::vector<layout::Transfer> transfers;
};
// What one rank sends to others, and what it receives, its own part included. Both are in order of peers.
struct BoxMessages {
  std::vector<BoxMessage> sends, receives;
};
BoxMessages box_messages(const layout::TransferPlan& plan, int rank);

// Copies the box of a transfer between two places.
void copy_box(const quant::Kernels& kernels, const layout::Transfer& transfer, const void* source, Side from,
              void* target, Side to, quant::DType type);
// Copies all boxes of a message into `packed`, one behind the other.
void pack_boxes(const quant::Kernels& kernels, const std::vector<layout::Transfer>& transfers, const void* source,
                void* packed, quant::DType type);

}  // namespace tessera::comm
