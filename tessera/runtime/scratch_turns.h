// Where exchanges have their scratch, by turns in one buffer: the next one begins while earlier ones are still summed.
#pragma once
#include <algorithm>
#include <cstddef>
#include <deque>

#include "tessera/base/fence.h"
#include "tessera/base/lane.h"

namespace tessera::runtime {

// One thread. Exchanges take their turns in the order in which their lane carries them out.
class ScratchTurns {
 public:
  // The offset of the next exchange's `bytes` in a buffer of `size` bytes, at most that many: behind the last one's, or
  // at the beginning again. `lane` waits for the sums of those that had a part of them.
  std::size_t take(std::size_t bytes, std::size_t size, base::Lane& lane) {
    has_turn_ = bytes > 0;
    if (!has_turn_) return 0;
    if (next_ + bytes > size) next_ = 0;
    const std::size_t begin = next_, end = begin + bytes;
    // The oldest lies next: what overlaps is at the front, or, after the buffer's end, behind what lies at that end.
    const auto overlaps = [&](const Turn& turn) { return turn.begin < end && begin < turn.end; };
    while (std::ranges::any_of(turns_, overlaps)) {
      lane.wait(turns_.front().summed);
      turns_.pop_front();
    }
    turns_.push_back({begin, end, {}});
    next_ = end;
    return begin;
  }
  // The one that was taken last is done with its bytes when `fence` is done.
  void give_back(const base::Fence& fence) {
    if (has_turn_) turns_.back().summed = fence;
  }
  // All that was given back is done with `fence`.
  void ends_with(const base::Fence& fence) {
    for (Turn& turn : turns_) turn.summed = fence;
  }
  // Nothing is under way: the buffer may be another one.
  void reset() {
    turns_.clear();
    next_ = 0;
  }

 private:
  struct Turn {
    std::size_t begin = 0, end = 0;
    base::Fence summed;
  };
  std::deque<Turn> turns_;
  std::size_t next_ = 0;
  bool has_turn_ = false;  // the one taken last
};

}  // namespace tessera::runtime
