#include "tessera/schedule/plan/arena.h"

#include <algorithm>

namespace tessera::schedule {

Arena::Arena(std::int64_t limit) {
  add_gap(0, limit);
}

std::optional<std::int64_t> Arena::find(std::int64_t bytes, int first, Side side) const {
  const auto within = [&](std::int64_t begin, std::int64_t end) { return side == Side::low ? begin : end - bytes; };
  if (const auto gap = gap_sizes_.lower_bound({bytes, 0}); gap != gap_sizes_.end())
    return within(gap->second, gap->second + gap->first);
  Gaps opened;  // runs of evictable tenants and adjacent gaps
  for (const auto& [value, next, last, offset] : order_) {
    if (last >= first) continue;  // the tenant is still in use and cannot be evicted
    const auto [begin, end] = widened(offset, offset + tenants_.at(offset).bytes, opened);
    if (end - begin >= bytes) return within(begin, end);
  }
  return std::nullopt;
}

// Extends [begin, end) by the adjacent opened runs and gaps. An opened run also includes the gaps at its two ends.
std::pair<std::int64_t, std::int64_t> Arena::widened(std::int64_t begin, std::int64_t end, Gaps& opened) const {
  for (const Gaps* runs : {static_cast<const Gaps*>(&opened), &gaps_}) {
    if (const auto above = runs->find(end); above != runs->end()) end = above->second;
    const auto below = runs->lower_bound(begin);
    if (below != runs->begin() && std::prev(below)->second == begin) begin = std::prev(below)->first;
  }
  opened.erase(opened.lower_bound(begin), opened.lower_bound(end));
  opened[begin] = end;
  return {begin, end};
}

// Returns the first tenant with a byte at or after `begin`.
std::map<std::int64_t, Tenant>::const_iterator Arena::first_above(std::int64_t begin) const {
  const auto at = tenants_.lower_bound(begin);
  if (at == tenants_.begin()) return at;
  const auto before = std::prev(at);
  return before->first + before->second.bytes > begin ? before : at;
}

std::vector<Tenant> Arena::put(const Tenant& tenant) {
  const std::int64_t begin = tenant.offset, end = begin + tenant.bytes;
  std::vector<Tenant> gone;
  for (auto at = first_above(begin); at != tenants_.end() && at->first < end;) gone.push_back(remove((at++)->first));
  const auto gap = std::prev(gaps_.upper_bound(begin));  // contains [begin, end)
  const auto [gap_begin, gap_end] = *gap;
  remove_gap(gap);
  if (gap_begin < begin) add_gap(gap_begin, begin);
  if (end < gap_end) add_gap(end, gap_end);
  tenants_.emplace(begin, tenant);
  order_.insert(order_of(tenant));
  return gone;
}

Tenant Arena::remove(std::int64_t offset) {
  const auto at = tenants_.find(offset);
  const Tenant tenant = at->second;
  order_.erase(order_of(tenant));
  tenants_.erase(at);
  add_gap(offset, offset + tenant.bytes);
  return tenant;
}

void Arena::use_again(std::int64_t offset, int last, int next) {
  Tenant& tenant = tenants_.at(offset);
  order_.erase(order_of(tenant));
  tenant.last = last;
  tenant.next = next;
  order_.insert(order_of(tenant));
}

// Merges adjacent gaps, so that gaps never touch.
void Arena::add_gap(std::int64_t begin, std::int64_t end) {
  const auto above = gaps_.find(end);
  if (above != gaps_.end()) {
    end = above->second;
    remove_gap(above);
  }
  const auto after = gaps_.lower_bound(begin);
  if (after != gaps_.begin() && std::prev(after)->second == begin) {
    begin = std::prev(after)->first;
    remove_gap(std::prev(after));
  }
  gaps_.emplace(begin, end);
  gap_sizes_.emplace(end - begin, begin);
}

void Arena::remove_gap(Gaps::iterator gap) {
  gap_sizes_.erase({gap->second - gap->first, gap->first});
  gaps_.erase(gap);
}

std::vector<std::int64_t> first_fit(std::span<const Stretch> stretches) {
  std::vector<std::int64_t> offsets;
  std::map<std::int64_t, const Stretch*> in_use;  // key: offset
  for (const Stretch& next : stretches) {
    std::erase_if(in_use, [&](const auto& each) { return each.second->last < next.first; });
    std::int64_t offset = 0;
    for (const auto& [begin, other] : in_use) {
      if (begin - offset >= next.bytes) break;
      offset = begin + other->bytes;
    }
    in_use[offset] = &next;
    offsets.push_back(offset);
  }
  return offsets;
}

}  // namespace tessera::schedule
