// An arena as the checker sees it: which tenant wrote which bytes last, and who has used them since. Accesses come in
// the order in which the host enqueues them; one that another lane's access may overtake or undercut is a conflict.
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
  // What an access meets in the bytes it needs.
  struct Conflict {
    int tenant = kNoTenant;  // whose bytes they are
    bool ended = false;      // and that tenant's interval is over
    bool unordered = false;  // no wait puts that access before this one; otherwise: the contents are wrong
  };

  // The bytes belong to `tenant` from here, or are nobody's when its interval ends. Conflict: an earlier access is not
  // certainly done.
  std::optional<Conflict> write(Range range, int tenant, const ClockedAccess& access, bool ends = false);
  // Conflict: some bytes are not `tenant`'s, or its write is not certainly done.
  std::optional<Conflict> read(Range range, int tenant, const ClockedAccess& access);

 private:
  struct Segment {
    std::int64_t end = 0;
    int tenant = kNoTenant;
    bool ended = false;
    AccessHistory history;
  };
  using Segments = std::map<std::int64_t, Segment>;  // by begin; disjoint

  // The first segment that begins at or after `at`, the one around `at` being cut in two there.
  Segments::iterator cut(std::int64_t at);

  Segments segments_;
};

}  // namespace tessera::schedule
