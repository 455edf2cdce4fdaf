#include "tessera/comm/packing.h"

#include <map>
#include <utility>

#include "tessera/comm/operation.h"

namespace tessera::comm {

void Run::add(const layout::Transfer& transfer, Side side) {
  if (empty_) begin_ = next_ = side.offset;
  empty_ = false;
  const bool dense = transfer.box.rows == 1 || side.stride == transfer.box.cols;
  if (side.offset != next_ || !dense) broken_ = true;
  next_ += transfer.box.elements();
}

std::optional<std::int64_t> run_of(const std::vector<layout::Transfer>& transfers,
                                   Side (*side)(const layout::Transfer&)) {
  Run run;
  for (const layout::Transfer& transfer : transfers) run.add(transfer, side(transfer));
  return run.begin();
}

BoxMessages box_messages(const layout::TransferPlan& plan, int rank) {
  std::map<int, BoxMessage> sends, receives;
  const auto add = [](std::map<int, BoxMessage>& messages, int peer, const layout::Transfer& transfer) {
    BoxMessage& message = messages[peer];
    message.peer = peer;
    message.elements += transfer.box.elements();
    message.transfers.push_back(transfer);
  };
  for (const layout::Transfer& transfer : plan.transfers) {
    if (transfer.source == rank && transfer.target != rank) add(sends, transfer.target, transfer);
    if (transfer.target == rank) add(receives, transfer.source, transfer);
  }
  BoxMessages result;
  for (auto& [peer, message] : sends) {
    message.run = run_of(message.transfers, source_of);
    result.sends.push_back(std::move(message));
  }
  for (auto& [peer, message] : receives) {
    message.run = run_of(message.transfers, target_of);
    result.receives.push_back(std::move(message));
  }
  return result;
}

void copy_box(const quant::Kernels& kernels, const layout::Transfer& transfer, const void* source, Side from,
              void* target, Side to, quant::DType type) {
  kernels.copy_matrix(advance(source, from.offset, type), from.stride, advance(target, to.offset, type), to.stride,
                      transfer.box.rows, transfer.box.cols, quant::size_of(type));
}

void pack_boxes(const quant::Kernels& kernels, const std::vector<layout::Transfer>& transfers, const void* source,
                void* packed, quant::DType type) {
  std::int64_t at = 0;
  for (const layout::Transfer& transfer : transfers) {
    copy_box(kernels, transfer, source, source_of(transfer), packed, {at, transfer.box.cols}, type);
    at += transfer.box.elements();
  }
}

}  // namespace tessera::comm
