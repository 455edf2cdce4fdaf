#include "tessera/comm/cuda_peer/peer_memory.h"

#include <cstring>

#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"

namespace tessera::comm {

PeerMemory::PeerMemory(const GroupIdentity& group, base::Device device, std::span<std::byte> memory,
                       const std::vector<bool>& reachable, const ExchangeFunction& exchange)
    : device_(device), own_(memory), mapped_(group.members.size()), reached_(group.members.size()) {
  const base::DeviceGuard guard(device);
  std::string handle;
  if (!memory.empty()) {
    cudaIpcMemHandle_t opaque{};
    TESSERA_CUDA_CHECK(cudaIpcGetMemHandle(&opaque, memory.data()));
    handle.assign(reinterpret_cast<const char*>(&opaque), sizeof opaque);
  }
  const std::vector<std::string> handles = exchange(handle);
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != group.rank && reachable[static_cast<std::size_t>(peer)])
      open(group, peer, handles[static_cast<std::size_t>(peer)]);
}

void PeerMemory::open(const GroupIdentity& group, int peer, const std::string& handle) {
  const auto index = static_cast<std::size_t>(peer);
  reached_[index] = handle.empty();
  cudaIpcMemHandle_t opaque{};
  if (handle.size() != sizeof opaque) return;
  std::memcpy(&opaque, handle.data(), sizeof opaque);
  void* memory = nullptr;
  const cudaError_t status = cudaIpcOpenMemHandle(&memory, opaque, cudaIpcMemLazyEnablePeerAccess);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    problem_ = fmt::format("rank {} cannot map the memory of rank {}: {}", group.world_rank(), group.members[index],
                           cudaGetErrorString(status));
    return;
  }
  mapped_[index] = static_cast<std::byte*>(memory);
  reached_[index] = true;
}

PeerMemory::~PeerMemory() {
  for (std::byte* memory : mapped_)
    if (memory != nullptr && cudaIpcCloseMemHandle(memory) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace tessera::comm
