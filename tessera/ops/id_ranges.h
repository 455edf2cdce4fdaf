// The vocabulary ids that belong to a rank's rows of a table, as ranges of ids in the order of the rows. The struct has
// a fixed size, so it can be a kernel argument.
#pragma once
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera::ops {

struct IdRanges {
  static constexpr int kMaxRanges = 8;
  struct Range {
    std::int64_t begin = 0, end = 0;  // the ids [begin, end)
    std::int64_t row = 0;             // row of the first id
  };
  Range ranges[kMaxRanges];
  int count = 0;

  // Appends the ids [begin, begin + size). Does nothing if size is 0. Throws Error if an argument is negative, or if
  // there are already kMaxRanges ranges.
  void add(std::int64_t begin, std::int64_t size);
  std::int64_t rows() const { return count == 0 ? 0 : end_row(ranges[count - 1]); }
  // Returns the row of an id, or -1 if the id is not in a range or is negative.
  TESSERA_HOST_DEVICE std::int64_t row_of(std::int64_t id) const {
    for (int i = 0; i < count; ++i)
      if (id >= ranges[i].begin && id < ranges[i].end) return ranges[i].row + (id - ranges[i].begin);
    return -1;
  }

 private:
  static std::int64_t end_row(const Range& range) { return range.row + range.end - range.begin; }
};

// Returns the ids [begin, begin + size).
IdRanges one_range(std::int64_t begin, std::int64_t size);

}  // namespace tessera::ops
