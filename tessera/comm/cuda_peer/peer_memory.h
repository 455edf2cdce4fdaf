// Maps device memory of a group's members into the processes of members on the same host.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/comm/operation.h"

namespace tessera::comm {

// Exchanges a text between all members of a group. Every member calls the function with its own text. Returns the texts
// of all members, by group rank.
using ExchangeFunction = std::function<std::vector<std::string>(const std::string& own)>;

// One buffer of each member, mapped by the other members through CUDA IPC handles.
class PeerMemory {
 public:
  // Collective. `memory` is a whole allocation (base::Buffer) of `device`, or empty. Maps the buffers of the members
  // for which `reachable` (by group rank) is true. A buffer that cannot be mapped is skipped, and problem() returns the
  // reason.
  PeerMemory(const GroupIdentity& group, base::Device device, std::span<std::byte> memory,
             const std::vector<bool>& reachable, const ExchangeFunction& exchange);
  // Removes the mappings. The owner may free its memory when all members have removed their mappings.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  std::span<std::byte> own() const { return own_; }
  // Returns the address of a peer's memory in this process, or null if the memory is not mapped or is empty.
  std::byte* of(int peer) const { return mapped_[static_cast<std::size_t>(peer)]; }
  bool can_reach(int peer) const { return reached_[static_cast<std::size_t>(peer)]; }
  const std::string& problem() const { return problem_; }

 private:
  void open(const GroupIdentity& group, int peer, const std::string& handle);

  const base::Device device_;
  const std::span<std::byte> own_;
  std::vector<std::byte*> mapped_;
  std::vector<bool> reached_;  // by group rank: whether the peer's memory is mapped or empty
  std::string problem_;
};

}  // namespace tessera::comm
