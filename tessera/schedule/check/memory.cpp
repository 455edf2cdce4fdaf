#include "tessera/schedule/check/memory.h"

#include <iterator>

namespace tessera::schedule {

CheckedArena::Segments::iterator CheckedArena::cut(std::int64_t at) {
  auto next = segments_.lower_bound(at);
  if (next == segments_.begin() || (next != segments_.end() && next->first == at)) return next;
  Segment& around = std::prev(next)->second;
  if (around.end <= at) return next;
  Segment tail = around;
  around.end = at;
  return segments_.emplace_hint(next, at, tail);
}

std::optional<CheckedArena::Conflict> CheckedArena::write(Range range, int tenant, const ClockedAccess& access,
                                                          bool ends) {
  std::optional<Conflict> conflict;
  const auto first = cut(range.begin), last = cut(range.end);
  for (auto segment = first; segment != last; ++segment)
    if (!conflict && !segment->second.history.ready_to_write(access.clock))
      conflict = Conflict{segment->second.tenant, segment->second.ended, true};
  segments_.erase(first, last);
  Segment written{.end = range.end, .tenant = tenant, .ended = ends};
  written.history.set_write(access);
  segments_.emplace(range.begin, written);
  return conflict;
}

std::optional<CheckedArena::Conflict> CheckedArena::read(Range range, int tenant, const ClockedAccess& access) {
  std::optional<Conflict> conflict;
  std::int64_t at = range.begin;
  for (auto segment = cut(at), last = cut(range.end); segment != last; ++segment) {
    Segment& found = segment->second;
    if (!conflict && (segment->first != at || found.tenant != tenant || found.ended))
      conflict = Conflict{found.tenant, found.ended, false};
    if (!conflict && !found.history.ready_to_read(access.clock)) conflict = Conflict{found.tenant, found.ended, true};
    found.history.set_read(access);
    at = found.end;
  }
  if (!conflict && at != range.end) conflict = Conflict{};
  return conflict;
}

}  // namespace tessera::schedule
