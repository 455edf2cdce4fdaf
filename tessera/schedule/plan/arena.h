// Assigns the bytes of an arena in the order of need while the planner runs, and chooses the tenants to evict.
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

// An interval of bytes in an arena and its use.
struct Tenant {
  std::int64_t offset = 0, bytes = 0;
  int owner = 0;      // defined by the caller
  int last = 0;       // in use until this event ...
  int next = kNever;  // ... and next used from this event
};

class Arena {
 public:
  explicit Arena(std::int64_t limit);

  // Returns an offset for `bytes` at event `first`. Takes the smallest free gap that is large enough. If no gap is
  // large enough, takes the bytes of tenants that are not in use. Tenants whose next use is farthest away come first,
  // and among equals the tenants whose use ended first. Returns nullopt if tenants in use leave too few bytes. `side`
  // selects the end of the found bytes if they are more than needed.
  enum class Side : std::uint8_t { low, high };
  std::optional<std::int64_t> find(std::int64_t bytes, int first, Side side = Side::low) const;
  // Adds a tenant and evicts the tenants that overlap with it. Returns the evicted tenants in order of offset. Other
  // bytes of the evicted tenants become free.
  std::vector<Tenant> put(const Tenant& tenant);
  Tenant remove(std::int64_t offset);
  // Records another use of the tenant at this offset.
  void use_again(std::int64_t offset, int last, int next);

 private:
  using Gaps = std::map<std::int64_t, std::int64_t>;  // begin -> end
  using Order =
      std::tuple<int, int, std::int64_t>;  // (-next, last, offset): tenants in this order are evicted first to last
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

// An interval of events in which bytes are in use.
struct Stretch {
  int first = 0, last = 0;
  std::int64_t bytes = 0;
};

// Returns an offset for each stretch: the lowest offset that is free. `stretches` is in the order of `first`.
std::vector<std::int64_t> first_fit(std::span<const Stretch> stretches);

}  // namespace tessera::schedule
