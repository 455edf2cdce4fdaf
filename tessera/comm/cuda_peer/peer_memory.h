// Device memory of the members of a group, mapped by those of its host.
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

// A group's members tell each other something, all at the same time: every call returns what each has said.
using ExchangeFunction = std::function<std::vector<std::string>(const std::string& own)>;

// Two processes with the same one run on one host, as far as they can tell.
std::string host_identity();

// The handles by which others map one piece of memory: CUDA IPC.
class PeerMemory {
 public:
  // Collective. `memory`: a whole allocation (base::Buffer) of `device`, or empty. Maps what the members of
  // `reachable` (by group rank) give. A piece that cannot be mapped is none: problem() says why.
  PeerMemory(const GroupIdentity& group, base::Device device, std::span<std::byte> memory,
             const std::vector<bool>& reachable, const ExchangeFunction& exchange);
  // Takes the mappings away. Memory may be given back when all members have done so.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  std::span<std::byte> own() const { return own_; }
  // Where a peer's memory is seen here; null where it is not, or is empty.
  std::byte* of(int peer) const { return mapped_[static_cast<std::size_t>(peer)]; }
  bool can_reach(int peer) const { return reached_[static_cast<std::size_t>(peer)]; }
  const std::string& problem() const { return problem_; }

 private:
  void open(const GroupIdentity& group, int peer, const std::string& handle);

  const base::Device device_;
  const std::span<std::byte> own_;
  std::vector<std::byte*> mapped_;
  std::vector<bool> reached_;  // its memory is mapped, or it has none
  std::string problem_;
};

}  // namespace tessera::comm
