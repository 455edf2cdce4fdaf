#include "tessera/comm/nccl/staging.h"

#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "tessera/base/cuda_check.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// The copies that a callback of the stream makes, and the position of their work on the lane.
struct HostCopies {
  std::vector<Copy> copies;
  std::shared_ptr<const base::LaneFaults> faults;
  std::int64_t position = 0;
};

bool is_host(const void* pointer, std::size_t bytes) {
  return bytes > 0 && !base::is_device_memory(pointer);
}

}  // namespace

std::byte* GrowingBuffer::of(std::size_t bytes) {
  if (buffers_.empty() || buffers_.back().size() < bytes) {
    const std::size_t room = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    buffers_.push_back(device_.kind == base::DeviceKind::cpu ? base::Buffer::pinned(room)
                                                             : base::Buffer(room, device_));
  }
  return buffers_.back().data();
}

NcclStaging::NcclStaging(base::Device device, base::CudaStream stream, std::shared_ptr<const base::LaneFaults> faults)
    : device_(device), stream_(stream), faults_(std::move(faults)), pinned_(base::Device{}), on_device_(device) {}

NcclStaging::~NcclStaging() {
  const cudaError_t status = cudaStreamQuery(stream_);
  (void)cudaGetLastError();
  if (status != cudaErrorNotReady) return;
  // Does not free both buffers, because the stream may still use them for an unknown time.
  (void)new GrowingBuffer(std::move(pinned_));
  (void)new GrowingBuffer(std::move(on_device_));
}

void NcclStaging::add(const void* source, void* target, std::size_t bytes) {
  if (!is_host(source != nullptr ? source : target, bytes)) return;
  pieces_.push_back({.source = source, .target = target, .bytes = bytes, .at = bytes_});
  bytes_ += base::align_up(bytes);
}

void NcclStaging::collect(const Operation& operation, const GroupIdentity& group) {
  const auto bytes = [&](const std::vector<std::int64_t>& counts) { return bytes_of(sum_of(counts), operation.type); };
  const auto own = static_cast<std::size_t>(group.rank);
  switch (operation.kind) {
    case OperationKind::all_gather:
      add(operation.send, nullptr, bytes_of(operation.recv_counts[own], operation.type));
      return add(nullptr, operation.recv, bytes(operation.recv_counts));
    case OperationKind::all_to_all:
      add(operation.send, nullptr, bytes(operation.send_counts));
      return add(nullptr, operation.recv, bytes(operation.recv_counts));
    case OperationKind::reduce_scatter:
      add(operation.send, nullptr, bytes(operation.send_counts));
      return add(nullptr, operation.recv, bytes_of(operation.send_counts[own], operation.type));
    case OperationKind::all_reduce:
    case OperationKind::broadcast:
      return add(operation.recv, operation.recv, bytes(operation.recv_counts));
    case OperationKind::barrier:
      return;
    case OperationKind::exchange:
      for (const Send& send : operation.sends) add(send.data, nullptr, send.bytes);
      for (const Receive& receive : operation.receives) add(nullptr, receive.data, receive.bytes);
      return;
  }
}

Operation NcclStaging::to_device(const Operation& operation, const GroupIdentity& group) {
  pieces_.clear();
  bytes_ = 0;
  collect(operation, group);
  if (pieces_.empty()) return operation;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  TESSERA_CUDA_CHECK(cudaStreamIsCapturing(stream_, &capture));
  if (capture != cudaStreamCaptureStatusNone)
    throw Error("operands of a graph: expected memory of {}, got host memory", name_of(device_));
  host_base_ = pinned_.of(bytes_);
  device_base_ = on_device_.of(bytes_);
  std::vector<Copy> copies;
  for (const Piece& piece : pieces_)
    if (piece.source != nullptr)
      copies.push_back({.source = piece.source, .target = host_base_ + piece.at, .bytes = piece.bytes});
  copy_on_host(std::move(copies));
  for (const Piece& piece : pieces_)
    if (piece.source != nullptr)
      TESSERA_CUDA_CHECK(cudaMemcpyAsync(device_base_ + piece.at, host_base_ + piece.at, piece.bytes,
                                         cudaMemcpyHostToDevice, stream_));
  // The pieces are in the order of the operands.
  Operation moved = operation;
  std::size_t next = 0;
  const auto place = [&](auto*& pointer, std::size_t bytes) {
    if (is_host(pointer, bytes)) pointer = device_base_ + pieces_[next++].at;
  };
  if (operation.kind == OperationKind::exchange) {
    for (Send& send : moved.sends) place(send.data, send.bytes);
    for (Receive& receive : moved.receives) place(receive.data, receive.bytes);
    return moved;
  }
  for (const Piece& piece : pieces_) {
    void* there = device_base_ + piece.at;
    if (piece.source == operation.send && piece.target == nullptr) moved.send = there;
    if (piece.target != nullptr) moved.recv = there;
  }
  return moved;
}

void NcclStaging::to_host() {
  std::vector<Copy> copies;
  for (const Piece& piece : pieces_) {
    if (piece.target == nullptr) continue;
    TESSERA_CUDA_CHECK(
        cudaMemcpyAsync(host_base_ + piece.at, device_base_ + piece.at, piece.bytes, cudaMemcpyDeviceToHost, stream_));
    copies.push_back({.source = host_base_ + piece.at, .target = piece.target, .bytes = piece.bytes});
  }
  copy_on_host(std::move(copies));
}

void NcclStaging::copy_on_host(std::vector<Copy> copies) {
  if (copies.empty()) return;
  auto work = std::make_unique<HostCopies>(std::move(copies), faults_, faults_->position());
  const auto run_copies = [](void* data) {
    const std::unique_ptr<HostCopies> own(static_cast<HostCopies*>(data));
    own->faults->run_unless_abandoned(own->position, [&] {
      for (const Copy& one : own->copies) std::memcpy(one.target, one.source, one.bytes);
    });
  };
  TESSERA_CUDA_CHECK(cudaLaunchHostFunc(stream_, run_copies, work.get()));
  (void)work.release();  // the callback owns the work
}

}  // namespace tessera::comm
