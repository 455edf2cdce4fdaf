#include "tessera/ops/id_ranges.h"

#include "tessera/base/error.h"

namespace tessera::ops {

void IdRanges::add(std::int64_t begin, std::int64_t size) {
  TESSERA_CHECK(begin >= 0 && size >= 0, "ids of a vocabulary: size {} and begin {}, expected 0 or more", size, begin);
  if (size == 0) return;
  TESSERA_CHECK(count < kMaxRanges,
                "ids of a vocabulary: a rank's part has more than {} ranges, expected at most that many", kMaxRanges);
  const std::int64_t row = rows();
  ranges[count++] = {.begin = begin, .end = begin + size, .row = row};
}

IdRanges one_range(std::int64_t begin, std::int64_t size) {
  IdRanges ids;
  ids.add(begin, size);
  return ids;
}

}  // namespace tessera::ops
