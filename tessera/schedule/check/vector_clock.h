// Vector clocks over the lanes of one rank: what must have happened before what, at every speed.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace tessera::schedule {

enum class CheckedLane : std::uint8_t { compute, gather, reduce, replicas };
inline constexpr std::size_t kCheckedLanes = 4;

// By lane: how many of its operations have certainly happened.
using VectorClock = std::array<std::int64_t, kCheckedLanes>;

inline std::int64_t& time_of(VectorClock& clock, CheckedLane lane) {
  return clock[static_cast<std::size_t>(lane)];
}

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
  CheckedLane lane = CheckedLane::compute;
  VectorClock clock{};
};

// What touched an object: its last write and, by lane, the last read since.
struct AccessHistory {
  VectorClock write{}, reads{};

  bool ready_to_read(const VectorClock& now) const { return happened_before(write, now); }
  bool ready_to_write(const VectorClock& now) const { return ready_to_read(now) && happened_before(reads, now); }
  void set_read(const ClockedAccess& access) {
    const auto lane = static_cast<std::size_t>(access.lane);
    reads[lane] = access.clock[lane];
  }
  // Only the writer's own time is kept: who has seen it has seen everything that the writer had seen.
  void set_write(const ClockedAccess& access) {
    const auto lane = static_cast<std::size_t>(access.lane);
    write = {};
    reads = {};
    write[lane] = access.clock[lane];
  }
};

}  // namespace tessera::schedule
