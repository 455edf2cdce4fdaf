#include "tessera/ops/id_ranges.h"

#include "tessera/base/error.h"

namespace tessera::ops {

void IdRanges::add(std::int64_t begin, std::int64_t size) {
  TESSERA_CHECK(begin >= 0 && size >= 0, "ids of a vocabulary: {} from {} on, expected no negative number", size,
                begin);
  if (size == 0) return;
  TESSERA_CHECK(count < kMost,
                "a rank's part of the vocabulary consists of more than {} ranges of ids, which is the most", kMost);
  const std::int64_t row = rows();
  ranges[count++] = {.begin = begin, .end = begin + size, .row = row};
}

IdRanges one_range(std::int64_t begin, std::int64_t size) {
  IdRanges ids;
  ids.add(begin, size);
  return ids;
}

}  // namespace tessera::ops
