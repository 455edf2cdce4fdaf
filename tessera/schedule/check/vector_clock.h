// Vector clocks over the lanes of one rank: what must have happened before what, at every speed.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::schedule {

// Compute, and of each domain: gathers, exchanges of gradients, their sums, sums over replicas. Where the sums of all
// domains share a lane, they are ordered by more than is assumed here.
inline constexpr int kMostCheckedDomains = 5;
inline constexpr std::size_t kCheckedLanes = 1 + 4 * kMostCheckedDomains;
enum class DomainLane : std::uint8_t { gather, exchange, sum, replicas };

using CheckedLane = std::size_t;  // below kCheckedLanes
inline constexpr CheckedLane kCompute = 0;
inline constexpr CheckedLane lane_of(DomainLane lane, int domain) {
  return 1 + 4 * static_cast<std::size_t>(domain) + static_cast<std::size_t>(lane);
}

// By lane: how many of its operations have certainly happened.
using VectorClock = std::array<std::int64_t, kCheckedLanes>;

inline void join(VectorClock& clock, const VectorClock& other) {
  for (std::size_t lane = 0; lane < kCheckedLanes; ++lane) clock[lane] = std::max(clock[lane], other[lane]);
}

// True when everything counted in `earlier` has happened before what sees `now`.
inline bool happened_before(const VectorClock& earlier, const VectorClock& now) {
  for (std::size_t lane = 0; lane < kCheckedLanes; ++lane)
    if (earlier[lane] > now[lane]) return false;
  return true;
}

// An operation that is on its lane now, with the clock it runs at (its own time included).
struct ClockedAccess {
  CheckedLane lane = kCompute;
  VectorClock clock{};
};

// What touched an object: its last write and, by lane, the last read since.
struct AccessHistory {
  VectorClock write{}, reads{};

  bool ready_to_read(const VectorClock& now) const { return happened_before(write, now); }
  bool ready_to_write(const VectorClock& now) const { return ready_to_read(now) && happened_before(reads, now); }
  void set_read(const ClockedAccess& access) { reads[access.lane] = access.clock[access.lane]; }
  // Only the writer's own time is kept: who has seen it has seen everything that the writer had seen.
  void set_write(const ClockedAccess& access) {
    write = {};
    reads = {};
    write[access.lane] = access.clock[access.lane];
  }
};

}  // namespace tessera::schedule
