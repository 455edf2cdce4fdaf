// Vector clocks over the lanes of one rank. Vector clocks give the order of operations that holds for any durations of
// the operations.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::schedule {

// One lane is compute. Each domain has four more lanes: for gathers, exchanges of gradients, sums of gradients, and
// sums over replicas. In a run, the sums of all domains may share one lane. The real order is then stricter than the
// checked order, so the proof holds.
inline constexpr int kMaxCheckedDomains = 5;
inline constexpr std::size_t kCheckedLanes = 1 + 4 * kMaxCheckedDomains;
enum class DomainLane : std::uint8_t { gather, exchange, sum, replicas };

using CheckedLane = std::size_t;  // below kCheckedLanes
inline constexpr CheckedLane kCompute = 0;
inline constexpr CheckedLane lane_of(DomainLane lane, int domain) {
  return 1 + 4 * static_cast<std::size_t>(domain) + static_cast<std::size_t>(lane);
}

// By lane: the number of its operations that have happened before, for any durations.
using VectorClock = std::array<std::int64_t, kCheckedLanes>;

inline void join(VectorClock& clock, const VectorClock& other) {
  for (std::size_t lane = 0; lane < kCheckedLanes; ++lane) clock[lane] = std::max(clock[lane], other[lane]);
}

// Returns whether all operations counted in `earlier` have happened before an operation with the clock `now`.
inline bool happened_before(const VectorClock& earlier, const VectorClock& now) {
  for (std::size_t lane = 0; lane < kCheckedLanes; ++lane)
    if (earlier[lane] > now[lane]) return false;
  return true;
}

// An operation on a lane, with its clock. The clock counts the operation itself.
struct ClockedAccess {
  CheckedLane lane = kCompute;
  VectorClock clock{};
};

// The accesses to an object: the clock of the last write, and, by lane, the last read since this write.
struct AccessHistory {
  VectorClock write{}, reads{};

  bool ready_to_read(const VectorClock& now) const { return happened_before(write, now); }
  bool ready_to_write(const VectorClock& now) const { return ready_to_read(now) && happened_before(reads, now); }
  void set_read(const ClockedAccess& access) { reads[access.lane] = access.clock[access.lane]; }
  // Only the writer's own lane must be stored. A clock that includes the write also includes everything that happened
  // before the write.
  void set_write(const ClockedAccess& access) {
    write = {};
    reads = {};
    write[access.lane] = access.clock[access.lane];
  }
};

}  // namespace tessera::schedule
