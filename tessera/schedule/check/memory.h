// An arena in the checker. The checker stores, for each byte, the tenant that wrote it last and the lanes that have
// read it since. Accesses are passed in the order in which the host enqueues them. An access conflicts with an earlier
// access of another lane if the lanes may execute the two accesses in the opposite order.
#pragma once
#include <cstdint>
#include <map>
#include <optional>

#include "tessera/schedule/check/vector_clock.h"

namespace tessera::schedule {

inline constexpr int kNoTenant = -1;  // tenant of bytes that were never written

class CheckedArena {
 public:
  // Bytes [begin, end), begin < end.
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  // The reason why an access is invalid.
  struct Conflict {
    int tenant = kNoTenant;  // the tenant that wrote the bytes last
    bool ended = false;      // whether the interval of this tenant has ended
    // True: waits do not order the tenant's access before this access. False: the bytes have wrong contents.
    bool unordered = false;
  };

  // Records that `tenant` writes the bytes. If `ends` is true, records that the tenant's interval ends. Returns a
  // conflict if an earlier access may still run.
  std::optional<Conflict> write(Range range, int tenant, const ClockedAccess& access, bool ends = false);
  // Records that `tenant` reads the bytes. Returns a conflict if some bytes do not belong to `tenant`, or if the
  // tenant's write may still run.
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
