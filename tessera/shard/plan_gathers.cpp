// Where every gathered weight lies, from when to when.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/shard/plan.h"

namespace tessera::shard {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// A stretch in which some member of a unit is consumed and not yet released.
struct Use {
  int unit = 0, first = 0, last = 0;  // event indices of the consume and the release
  int next = kNever;                  // `first` of the unit's next use
};

std::vector<Use> uses_of(const Trace& trace, const Schedule& schedule, std::vector<int>& published) {
  std::vector<int> unit_of;
  for (int unit = 0; unit < static_cast<int>(schedule.gather_units.size()); ++unit)
    for (const ParameterId member : schedule.gather_units[static_cast<std::size_t>(unit)]) {
      unit_of.resize(std::max(unit_of.size(), static_cast<std::size_t>(member) + 1), -1);
      unit_of[static_cast<std::size_t>(member)] = unit;
    }
  const std::size_t units = schedule.gather_units.size();
  std::vector<int> users(units, 0), open(units, -1);
  published.assign(units, std::min(-1, -schedule.publishes()));
  std::vector<Use> uses;
  for (int index = 0; index < schedule.events; ++index) {
    const Event& event = trace[static_cast<std::size_t>(index)];
    const auto parameter = static_cast<std::size_t>(event.parameter);
    if (event.parameter < 0 || parameter >= unit_of.size() || unit_of[parameter] < 0) continue;
    const int unit = unit_of[parameter];
    const auto u = static_cast<std::size_t>(unit);
    if (event.kind == EventKind::publish) published[u] = std::max(published[u], schedule.position_of(index));
    if (event.kind == EventKind::consume && users[u]++ == 0) {
      open[u] = static_cast<int>(uses.size());
      uses.push_back({unit, index, -1});
    }
    if (event.kind != EventKind::release) continue;
    TESSERA_CHECK(users[u] > 0, "event {}: parameter {} is released and not consumed", index, event.parameter);
    if (--users[u] == 0) uses[static_cast<std::size_t>(open[u])].last = index;
  }
  std::vector<int> next(units, kNever);
  for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
    TESSERA_CHECK(use->last >= 0, "event {}: unit {} is consumed and never released", use->first, use->unit);
    use->next = std::exchange(next[static_cast<std::size_t>(use->unit)], use->first);
  }
  return uses;
}

// The arena while uses are placed in the order of need: who lies where, until when, and when it is needed again.
class Arena {
 public:
  struct Tenant {
    std::int64_t bytes = 0;
    int unit = 0, residency = 0, last = 0, next = kNever;
  };
  struct Place {
    std::int64_t offset = 0;
    int next = kNever;                           // the soonest next use of those who make room
    int last = std::numeric_limits<int>::min();  // the latest release among them
  };

  // The best place for `bytes` below `limit` at event `first`: whose tenants are needed again last, then are released
  // first, then lowest. With `lowest`, the lowest place whose tenants are not in use.
  std::optional<Place> find(std::int64_t bytes, std::int64_t limit, int first, bool lowest) const {
    std::optional<Place> best;
    auto consider = [&](std::int64_t offset) {
      if (offset < 0 || offset + bytes > limit) return;
      const std::optional<Place> place = at(offset, bytes, first);
      if (!place) return;
      const auto key = [&](const Place& p) {
        return lowest ? std::tuple(0, 0, p.offset) : std::tuple(-p.next, p.last, p.offset);
      };
      if (!best || key(*place) < key(*best)) best = place;
    };
    consider(0);
    for (const auto& [offset, tenant] : tenants_) {
      if (lowest && best) break;
      consider(offset);
      consider(offset + tenant.bytes);
      consider(offset + tenant.bytes - bytes);
    }
    return best;
  }

  // Puts the tenant there; who lay there is gone.
  void put(std::int64_t offset, const Tenant& tenant) {
    auto at = first_overlap(offset);
    while (at != tenants_.end() && at->first < offset + tenant.bytes) {
      offset_of_.erase(at->second.unit);
      at = tenants_.erase(at);
    }
    tenants_.emplace(offset, tenant);
    offset_of_[tenant.unit] = offset;
  }
  Tenant* resident(int unit) {
    const auto at = offset_of_.find(unit);
    return at == offset_of_.end() ? nullptr : &tenants_.at(at->second);
  }

 private:
  std::map<std::int64_t, Tenant>::const_iterator first_overlap(std::int64_t offset) const {
    auto at = tenants_.upper_bound(offset);
    if (at == tenants_.begin()) return at;
    const auto before = std::prev(at);
    return before->first + before->second.bytes > offset ? before : at;
  }
  std::optional<Place> at(std::int64_t offset, std::int64_t bytes, int first) const {
    Place place{offset};
    for (auto at = first_overlap(offset); at != tenants_.end() && at->first < offset + bytes; ++at) {
      if (at->second.last >= first) return std::nullopt;  // in use then
      place.next = std::min(place.next, at->second.next);
      place.last = std::max(place.last, at->second.last);
    }
    return place;
  }

  std::map<std::int64_t, Tenant> tenants_;
  std::map<int, std::int64_t> offset_of_;
};

// Null where some use finds no place below `limit`.
std::optional<std::vector<Residency>> place(const std::vector<Use>& uses, const std::vector<int>& published,
                                            const std::vector<std::int64_t>& bytes, std::int64_t limit, bool lowest) {
  Arena arena;
  std::vector<Residency> residencies;
  for (const Use& use : uses) {
    const auto unit = static_cast<std::size_t>(use.unit);
    if (Arena::Tenant* tenant = arena.resident(use.unit)) {
      residencies[static_cast<std::size_t>(tenant->residency)].last = tenant->last = use.last;
      tenant->next = use.next;
      continue;
    }
    const auto found = arena.find(bytes[unit], limit, use.first, lowest);
    if (!found) return std::nullopt;
    const int free = std::max(found->last, published[unit]);
    const int issue = residencies.empty() ? free : std::max(free, residencies.back().issue);
    arena.put(found->offset, {bytes[unit], use.unit, static_cast<int>(residencies.size()), use.last, use.next});
    residencies.push_back(
        {.unit = use.unit, .issue = issue, .free = free, .wait = use.first, .last = use.last, .offset = found->offset});
  }
  return residencies;
}

std::int64_t end_of(const std::vector<Residency>& residencies, const std::vector<std::int64_t>& bytes) {
  std::int64_t end = 0;
  for (const Residency& residency : residencies)
    end = std::max(end, residency.offset + bytes[static_cast<std::size_t>(residency.unit)]);
  return end;
}

}  // namespace

void plan_gathers(const Trace& trace, std::int64_t budget, Schedule& schedule) {
  std::vector<int> published;
  const std::vector<Use> uses = uses_of(trace, schedule, published);
  const auto smallest = place(uses, published, schedule.gather_bytes, kUnlimited, true);
  const std::int64_t minimum = end_of(*smallest, schedule.gather_bytes);
  if (budget == kMinimum) budget = minimum;
  if (budget < minimum)
    throw InputError("the budget for gathered weights is {} bytes; the smallest that can run is {}", budget, minimum);
  auto best = place(uses, published, schedule.gather_bytes, budget, false);
  if (!best) best = place(uses, published, schedule.gather_bytes, budget, true);
  schedule.residencies = std::move(*best);
  schedule.gather_arena = end_of(schedule.residencies, schedule.gather_bytes);
}

}  // namespace tessera::shard
