// Bytes of an arena, given out in the order of need while a plan is made: who lies where, and who makes room.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera::schedule {

inline constexpr int kNever = std::numeric_limits<int>::max();

struct Tenant {
  std::int64_t offset = 0, bytes = 0;
  int owner = 0;      // whoever put it here knows
  int last = 0;       // in use to this event ...
  int next = kNever;  // ... and again from this one
};

class Arena {
 public:
  explicit Arena(std::int64_t limit);

  // Where `bytes` can lie at event `first`: free bytes, the smallest gap of these; else in place of those that are
  // needed again last and, of these, were in use until the earliest event. Nowhere: tenants in use are in the way.
  // side: of the open bytes, where more than enough are found.
  enum class Side : std::uint8_t { low, high };
  std::optional<std::int64_t> find(std::int64_t bytes, int first, Side side = Side::low) const;
  // Whoever lies there has gone: returned, lowest first. The rest of their bytes is free.
  std::vector<Tenant> put(const Tenant& tenant);
  Tenant remove(std::int64_t offset);
  // The tenant at this offset is used once more.
  void use_again(std::int64_t offset, int last, int next);

 private:
  using Gaps = std::map<std::int64_t, std::int64_t>;  // begin -> end
  using Order = std::tuple<int, int, std::int64_t>;   // -next, last, offset: the first one makes room first
  static Order order_of(const Tenant& tenant) { return {-tenant.next, tenant.last, tenant.offset}; }
  std::pair<std::int64_t, std::int64_t> widened(std::int64_t begin, std::int64_t end, Gaps& opened) const;
  std::map<std::int64_t, Tenant>::const_iterator first_above(std::int64_t begin) const;
  void add_gap(std::int64_t begin, std::int64_t end);
  void remove_gap(Gaps::iterator gap);

  std::map<std::int64_t, Tenant> tenants_;  // by offset
  std::set<Order> order_;
  Gaps gaps_;
  std::set<std::pair<std::int64_t, std::int64_t>> gap_sizes_;  // bytes, begin
};

// A stretch of events in which bytes are in use.
struct Stretch {
  int first = 0, last = 0;
  std::int64_t bytes = 0;
};

// The lowest place for each, in the order of `first` (which they are in).
std::vector<std::int64_t> first_fit(std::span<const Stretch> stretches);

}  // namespace tessera::schedule
