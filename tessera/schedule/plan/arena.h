// Assigns the bytes of an arena while the planner runs, in the order in which they are needed. Chooses the tenants to
// evict.
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

// A user of an interval of bytes in an arena.
struct Tenant {
  std::int64_t offset = 0, bytes = 0;
  int owner = 0;          // defined by the caller
  int last = 0;           // the bytes are in use until this event
  int next = kNever;      // the event of the next use
  bool is_cheap = false;  // whether the bytes can be written again without a transfer
};

class Arena {
 public:
  explicit Arena(std::int64_t limit);

  // Returns an offset for `bytes` bytes at event `first`. Takes the smallest free gap that is large enough. If no gap
  // is large enough, takes the bytes of tenants that are not in use. Tenants without a next use are taken first, then
  // cheap tenants, then the others. Among these, the tenants whose next use is farthest away are taken first. Among
  // tenants with equal next use, the tenants whose use ended first are taken first. Returns nullopt if tenants in use
  // leave too few bytes. If the found range is larger than needed, `side` selects its low or its high
  // end.
  enum class Side : std::uint8_t { low, high };
  std::optional<std::int64_t> find(std::int64_t bytes, int first, Side side = Side::low) const;
  // Adds a tenant and evicts the tenants that overlap with it. Returns the evicted tenants in order of offset. The
  // bytes of evicted tenants outside the new tenant become free.
  std::vector<Tenant> put(const Tenant& tenant);
  Tenant remove(std::int64_t offset);
  // Records another use of the tenant at this offset.
  void use_again(std::int64_t offset, int last, int next);

 private:
  using Gaps = std::map<std::int64_t, std::int64_t>;  // by begin of the gap: its end
  // (value, -next, last, offset). Tenants are evicted in ascending order of this tuple.
  using Order = std::tuple<int, int, int, std::int64_t>;
  static Order order_of(const Tenant& tenant) {
    const int value = tenant.next == kNever ? 0 : tenant.is_cheap ? 1 : 2;
    return {value, -tenant.next, tenant.last, tenant.offset};
  }
  std::pair<std::int64_t, std::int64_t> widened(std::int64_t begin, std::int64_t end, Gaps& opened) const;
  std::map<std::int64_t, Tenant>::const_iterator first_above(std::int64_t begin) const;
  void add_gap(std::int64_t begin, std::int64_t end);
  void remove_gap(Gaps::iterator gap);

  std::map<std::int64_t, Tenant> tenants_;  // by offset
  std::set<Order> order_;
  Gaps gaps_;
  std::set<std::pair<std::int64_t, std::int64_t>> gap_sizes_;  // pairs of bytes and begin
};

// A range of events during which a number of bytes is in use.
struct Stretch {
  int first = 0, last = 0;
  std::int64_t bytes = 0;
};

// Returns for each stretch the lowest free offset. `stretches` is in the order of `first`.
std::vector<std::int64_t> first_fit(std::span<const Stretch> stretches);

}  // namespace tessera::schedule
