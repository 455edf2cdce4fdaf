// An arena in the checker: the tenant that last wrote each byte, and the lanes that have read it since. Accesses come
// in the order in which the host enqueues them. An access conflicts with an earlier access of another lane if the lanes
// may execute the two in the opposite order.
#pragma once
#include <cstdint>
#include <map>
#include <optional>

#include "tessera/schedule/check/vector_clock.h"

namespace tessera::schedule {

inline constexpr int kNoTenant = -1;  // never written

class CheckedArena {
 public:
  // Bytes [begin, end), begin < end.
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  // The state of the bytes that makes an access invalid.
  struct Conflict {
    int tenant = kNoTenant;  // the tenant that wrote the bytes last
    bool ended = false;      // the tenant's interval has ended
    bool unordered =
        false;  // true: no wait orders the tenant's access before this access; false: the bytes have the wrong contents
  };

  // Records that `tenant` writes the bytes, or, with `ends`, that the tenant's interval ends. Returns a conflict if an
  // earlier access may still run.
  std::optional<Conflict> write(Range range, int tenant, const ClockedAccess& access, bool ends = false);
  // Records a read. Returns a conflict if some bytes do not belong to `tenant`, or if its write may still run.
  std::optional<Conflict> read(Range range, int tenant, const ClockedAccess& access);

 private:
  struct Segment {
    std::int64_t end = 0;
    int tenant = kNoTenant;
    bool ended = false;
    AccessHistory history;
  };
  using Segments = std::map<std::int64_t, Segment>;  // by begin; disjoint

  // Splits the segment that contains `at`, and returns the first segment that begins at or after `at`.
  Segments::iterator cut(std::int64_t at);

  Segments segments_;
};

}  // namespace tessera::schedule
