// Where exchanges have their scratch, by turns in one buffer: the next one begins while earlier ones are still summed.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/base/lane.h"

namespace tessera::runtime {

// One thread. Exchanges of one lane take their turns in the order in which it carries them out. Exchanges of several
// lanes (those of other domains) may be under way together.
class ScratchTurns {
 public:
  // The offset of the next exchange's `bytes` in a buffer of `size` bytes, at most that many: behind the last one's, or
  // at the beginning again. `lane`, which carries the exchange out, waits for the sums of those that had a part of
  // them, unless it has done so.
  std::size_t take(std::size_t bytes, std::size_t size, base::Lane& lane) {
    has_turn_ = bytes > 0;
    if (!has_turn_) return 0;
    if (next_ + bytes > size) next_ = 0;
    const std::size_t begin = next_, end = begin + bytes;
    for (Turn& turn : turns_) {
      if (turn.end <= begin || end <= turn.begin) continue;
      if (turn.waiter != &lane) lane.wait(turn.summed);
      turn.waiter = &lane;
      turn.begin = std::min(end, turn.end);  // no turn begins before this one's bytes and reaches into them
    }
    std::erase_if(turns_, [](const Turn& turn) { return turn.begin == turn.end; });
    turns_.push_back({.begin = begin, .end = end, .summed = {}});
    next_ = end;
    return begin;
  }
  // The one that was taken last is done with its bytes when `fence` is done.
  void give_back(const base::Fence& fence) {
    if (has_turn_) turns_.back().summed = fence;
  }
  // All that was given back is done with `fence`.
  void ends_with(const base::Fence& fence) {
    for (Turn& turn : turns_) turn.summed = fence, turn.waiter = nullptr;
  }
  // Nothing is under way: the buffer may be another one.
  void reset() {
    turns_.clear();
    next_ = 0;
  }

 private:
  // Bytes that no later turn has taken over.
  struct Turn {
    std::size_t begin = 0, end = 0;
    base::Fence summed;
    const base::Lane* waiter = nullptr;  // the lane that took over the rest of the turn's bytes, and waits for its sum
  };
  std::vector<Turn> turns_;
  std::size_t next_ = 0;
  bool has_turn_ = false;  // the one taken last
};

}  // namespace tessera::runtime
