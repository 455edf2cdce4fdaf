// Which ids of a vocabulary a rank's rows stand for: ranges of ids, one after the other in the order of the rows. Plain
// data of fixed size, so that a kernel takes it by value.
#pragma once
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera::ops {

struct IdRanges {
  static constexpr int kMost = 8;
  struct Range {
    std::int64_t begin = 0, end = 0;  // ids
    std::int64_t row = 0;             // of the first one
  };
  Range ranges[kMost];
  int count = 0;

  // Appends `size` ids from `begin` on; nothing where size is 0. Errors: a negative number, more than kMost ranges.
  void add(std::int64_t begin, std::int64_t size);
  std::int64_t rows() const { return count == 0 ? 0 : end_row(ranges[count - 1]); }
  // The row of an id, -1 for none. An id below 0 has none.
  TESSERA_HOST_DEVICE std::int64_t row_of(std::int64_t id) const {
    for (int i = 0; i < count; ++i)
      if (id >= ranges[i].begin && id < ranges[i].end) return ranges[i].row + (id - ranges[i].begin);
    return -1;
  }

 private:
  static std::int64_t end_row(const Range& range) { return range.row + range.end - range.begin; }
};

// The ids [begin, begin + size).
IdRanges one_range(std::int64_t begin, std::int64_t size);

}  // namespace tessera::ops
